"""An operator of this release takes over from the one before it: what it left in status is read, and no pod is changed."""

from typing import Any

import msgspec
import pytest

from bireme_operator.plan.memory import Memory
from tests.planner.world import World, wanted

NEW_IN_GROUPS = {"revision", "restart", "making", "floor", "halfway_since", "announced", "refused", "image"}
NEW = {"progress", "good", "sources", "images", "restart", "stale_spares"}


def as_left_by_the_release_before(memory: Memory) -> Memory:
    content: dict[str, Any] = msgspec.to_builtins(memory)
    old = {key: value for key, value in content.items() if key not in NEW}
    old["groups"] = {
        index: {key: value for key, value in group.items() if key not in NEW_IN_GROUPS}
        for index, group in content["groups"].items()
    }
    return msgspec.json.decode(msgspec.json.encode(old), type=Memory)


@pytest.mark.parametrize("restart", ["", "since yesterday"])
def test_what_the_release_before_left_changes_no_pod(restart: str) -> None:
    world = World(wanted(replicas=3, restart=restart))
    world.settle()
    before = dict(world.pods)
    world.memory = as_left_by_the_release_before(world.memory)
    assert not world.settle().actions
    assert world.pods == before
    assert world.memory.good == world.desired.rendering.key


def test_a_rollout_that_the_release_before_began_goes_on() -> None:
    world = World(wanted(replicas=3))
    world.settle()
    world.change(revision="rev2")
    for _ in range(4):
        world.step()
    world.memory = as_left_by_the_release_before(world.memory)
    assert world.settle().status.updated_replicas == 3
    assert len(world.created) == 12, "each group is made anew once"
