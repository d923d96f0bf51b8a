"""Recovery mode Recreate: whatever is lost, all stages of the group are made anew, once, and no other group is touched."""

from dataclasses import replace
from itertools import pairwise

import pytest

from bireme.names import GroupState
from bireme_operator.plan.observed import Phase
from tests.planner.world import Luck, World, wanted


def settled(**changes: object) -> World:
    base = wanted(**changes)  # type: ignore[arg-type]
    world = World(replace(base, recovery=replace(base.recovery, whole=True)))
    world.settle()
    return world


def incarnations(world: World, group: int) -> list[int]:
    pods = sorted((pod.stage, pod.incarnation) for pod in world.pods.values() if pod.group == group)
    return [incarnation for _, incarnation in pods]


@pytest.mark.parametrize("stage", [0, 1, 2])
@pytest.mark.parametrize("how", ["vanish", "kill", "node"])
def test_the_loss_of_any_stage_replaces_all_of_its_group_once(stage: int, how: str) -> None:
    world = settled(stages=3)
    name = world.pod(0, stage).name
    if how == "vanish":
        world.vanish(name)
    elif how == "kill":
        world.kill(name, 1)
    else:
        world.pods[name] = replace(world.pods[name], node="n1", node_lost=True)
    world.settle()
    assert incarnations(world, 0) == [2, 2, 2]
    assert incarnations(world, 1) == [1, 1, 1]
    assert len(world.created) == 9
    assert sum(group.restarts for group in world.memory.groups.values()) == (how != "node")


def test_a_mode_that_is_changed_touches_no_pod_and_holds_from_the_next_loss_on() -> None:
    world = World(wanted(replicas=1, stages=2))
    world.settle()
    world.vanish(world.pod(0, 1).name)
    world.settle()
    assert incarnations(world, 0) == [1, 2]
    world.desired = replace(world.desired, recovery=replace(world.desired.recovery, whole=True))
    world.settle()
    assert incarnations(world, 0) == [1, 2]
    world.vanish(world.pod(0, 1).name)
    world.settle()
    assert incarnations(world, 0) == [3, 3]
    world.desired = replace(world.desired, recovery=replace(world.desired.recovery, whole=False))
    world.vanish(world.pod(0, 0).name)
    world.settle()
    assert incarnations(world, 0) == [4, 3]


@pytest.mark.parametrize("done", range(6))
def test_an_operator_that_dies_at_any_step_of_it_leaves_a_whole_group_to_the_next(done: int) -> None:
    """A making that was begun and perhaps lost a pod unseen is not carried on: its number might be another's then."""
    world = settled(stages=3, replicas=1)
    world.vanish(world.pod(0, 1).name)
    assert len(world.step_without_applying().actions) == 5
    world.visit(Luck(acts=done, dies=True, unwritten=True))
    world.settle()
    assert incarnations(world, 0) == ([2, 2, 2] if done == 5 else [3, 3, 3])
    assert world.memory.groups[0].restarts == 1, "nobody else has died"


def test_a_stage_that_never_stays_up_is_followed_by_waits_and_then_by_an_end() -> None:
    world = settled(replicas=2, stages=2)
    started: list[float] = []
    for _ in range(400):
        pods = [pod for pod in world.pods.values() if pod.group == 0 and pod.stage == 1]
        for pod in pods:
            if pod.phase is Phase.RUNNING:
                started.append(world.now)
                world.kill(pod.name, 1, "no route")
        result = world.step()
        if result.status.groups[0].state is GroupState.FAILED:
            break
        if not result.actions:
            world.advance((result.wake_at or world.now + 1) - world.now)
    gaps = [later - earlier for earlier, later in pairwise(started)]
    assert gaps == sorted(gaps), "each wait is as long as the one before, or longer"
    assert "no route" in result.status.groups[0].message
    assert result.status.groups[1].state is GroupState.SERVING
    assert incarnations(world, 1) == [1, 1]
