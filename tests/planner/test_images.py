"""An operator of another release has another default image: the groups that it finds stay alike, and never change for it."""

from collections.abc import Iterable
from dataclasses import replace

import pytest

from bireme_operator.plan.actions import CreatePod
from bireme_operator.plan.desired import RolloutPolicy
from bireme_operator.plan.memory import Memory
from bireme_operator.plan.observed import PodView
from tests.planner.test_upgrade import as_left_by_the_release_before
from tests.planner.world import World, wanted

OLD, NEW = "worker:1", "worker:2"


def served(**changes: object) -> World:
    """Groups that an operator made whose default was OLD, and one whose default is NEW has taken over."""
    world = World(wanted(image=OLD, **changes))  # type: ignore[arg-type]
    world.settle()
    world.desired = replace(world.desired, image=NEW)
    return world


def gone_back() -> World:
    """A group that served OLD, after a rollout that failed."""
    world = served(replicas=1, rollout=RolloutPolicy(0, 1, deadline_s=60))
    world.broken.add("rev2")
    world.change(revision="rev2")
    for _ in range(100):
        world.step()
        world.advance(1.0)
    return world


def images(pods: Iterable[PodView]) -> list[str]:
    return [pod.image for pod in pods]


def by_group(world: World) -> list[set[str]]:
    return [set(images(pod for pod in world.pods.values() if pod.group == group)) for group in world.memory.groups]


def test_another_default_changes_no_pod() -> None:
    world = served()
    before = dict(world.pods)
    assert not world.settle().actions
    assert world.pods == before


@pytest.mark.parametrize("stage", [0, 1])
def test_a_lost_stage_is_made_with_the_image_of_its_group(stage: int) -> None:
    world = served()
    world.settle()
    world.vanish(world.pod(0, stage).name)
    world.settle()
    assert world.pod(0, stage).image == OLD


def test_so_it_is_when_the_release_before_remembered_no_image() -> None:
    world = served()
    world.memory = as_left_by_the_release_before(world.memory)
    world.vanish(world.pod(0, 0).name)
    world.settle()
    assert images(world.pods.values()) == [OLD] * 4


def test_another_group_of_a_revision_has_the_image_of_those_that_are_there() -> None:
    world = served()
    world.change(replicas=4)
    world.settle()
    assert images(world.pods.values()) == [OLD] * 8


def test_another_revision_has_the_new_default_and_so_has_an_old_one_that_is_asked_for_anew() -> None:
    world = served()
    first = world.desired.revision
    world.change(revision="rev2")
    world.settle()
    assert images(world.pods.values()) == [NEW] * 4
    world.change(revision=first)
    world.settle()
    assert images(world.pods.values()) == [NEW] * 4, "the operator of then may be too far off by now"


def test_a_restart_brings_the_new_default_and_each_group_stays_alike_meanwhile() -> None:
    world = served(replicas=3, rollout=RolloutPolicy(0, 1, partition=1))
    world.settle()
    world.change(restart="now")
    world.settle()
    held = next(pod for pod in world.pods.values() if pod.image == OLD)
    world.vanish(held.name)
    world.settle()
    assert sorted(by_group(world), key=sorted) == [{OLD}, {NEW}, {NEW}]
    world.change(rollout=RolloutPolicy(0, 1))
    world.settle()
    assert images(world.pods.values()) == [NEW] * 6


def test_a_restart_that_was_asked_for_earlier_brings_no_other_image_later() -> None:
    world = served()
    world.desired = replace(world.desired, image=OLD)
    world.change(restart="yesterday")
    world.settle()
    world.desired = replace(world.desired, image=NEW)
    world.vanish(world.pod(0, 0).name)
    world.change(replicas=3)
    world.settle()
    assert images(world.pods.values()) == [OLD] * 6


def test_a_failed_rollout_goes_back_to_the_image_of_before() -> None:
    world = gone_back()
    assert images(world.pods.values()) == [OLD, OLD]
    assert {made.image for made in world.created if made.revision == "rev2"} == {NEW}


def test_a_restart_brings_the_new_default_after_a_failed_rollout_too() -> None:
    world = gone_back()
    world.change(restart="now")
    world.settle()
    assert {(pod.revision, pod.image) for pod in world.pods.values()} == {("rev1", NEW)}


def test_a_group_of_the_old_revision_that_dies_in_a_rollout_keeps_its_image() -> None:
    world = served(replicas=2, rollout=RolloutPolicy(0, 1, partition=1))
    world.change(revision="rev2")
    world.settle()
    old = next(pod for pod in world.pods.values() if pod.revision == "rev1")
    world.vanish(old.name)
    world.settle()
    assert {(pod.revision, pod.image) for pod in world.pods.values()} == {("rev1", OLD), ("rev2", NEW)}


def test_a_spare_has_the_image_of_the_groups_that_it_stands_by_for() -> None:
    world = served(replicas=1, spares=1)
    world.vanish(world.pod(0, 1).name)
    world.settle()
    assert images(world.pods.values()) == [OLD, OLD]
    assert images(world.spares.values()) == [OLD]


def test_a_restart_makes_the_spares_anew_and_none_becomes_a_stage_of_another_image() -> None:
    world = served(replicas=2, spares=1, rollout=RolloutPolicy(0, 1, partition=1))
    world.change(restart="now")
    world.settle()
    assert images(world.spares.values()) == [NEW]
    old = next(pod for pod in world.pods.values() if pod.image == OLD)
    world.vanish(old.name)
    (made,) = [one for one in world.step().actions if isinstance(one, CreatePod) and one.group == old.group]
    assert made.image == OLD
    world.settle()
    assert not world.adopted


def test_a_server_that_writes_images_its_own_way_costs_no_spare() -> None:
    world = served(replicas=1, spares=1)
    (name,) = world.spares
    world.spares[name] = replace(world.spares[name], image="mirror/worker:1")
    assert not world.settle().actions
    assert list(world.spares) == [name]


def test_revisions_that_nobody_keeps_are_forgotten() -> None:
    world = served()
    for number in range(2, 6):
        world.change(revision=f"rev{number}")
        world.settle()
    world.desired = replace(world.desired, history={})
    world.settle()
    assert dict(world.memory.images) == {"rev5": NEW}


def test_a_lost_memory_is_made_up_from_the_pods() -> None:
    world = served()
    world.memory = Memory()
    world.change(replicas=3)
    world.settle()
    assert images(world.pods.values()) == [OLD] * 6
