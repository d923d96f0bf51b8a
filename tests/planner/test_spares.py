"""Spares: there are as many as are wanted, they take the place of what is lost, and nobody else's."""

from dataclasses import replace

import pytest

from bireme.names import GroupState
from bireme_operator.plan.actions import AdoptSpare, Become, CreatePod, CreateSpare, EndSpare
from bireme_operator.plan.observed import Phase
from bireme_operator.plan.scale import NO_ROOM_S
from tests.planner.world import Luck, World, wanted


def spared(spares: int = 1, **changes: object) -> World:
    world = World(wanted(spares=spares, **changes))  # type: ignore[arg-type]
    world.settle()
    return world


def kinds(actions: object) -> list[type]:
    return [type(action) for action in actions]  # type: ignore[attr-defined]


def test_there_are_as_many_as_are_wanted_and_no_group_is_made_of_them() -> None:
    world = spared(2)
    assert [pod.incarnation for pod in world.spares.values()] == [1, 2]
    world.change(replicas=3)
    world.settle()
    assert len(world.spares) == 2
    world.change(spares=1)
    world.step()
    assert [pod.incarnation for pod in world.spares.values()] == [1], "the younger one goes"
    world.change(replicas=0)
    world.settle()
    assert not world.spares


@pytest.mark.parametrize("stage", [0, 1])
def test_a_lost_stage_is_taken_over_by_a_spare_and_the_spare_by_a_new_one(stage: int) -> None:
    world = spared()
    survivor = world.pod(0, 1 - stage)
    world.vanish(world.pod(0, stage).name)
    result = world.step()
    assert kinds(result.actions) == [AdoptSpare, CreateSpare]
    assert world.settle().status.ready_replicas == 2
    taken = world.pod(0, stage)
    assert (taken.spare, taken.incarnation) == (1, 2)
    assert world.pod(0, 1 - stage).name == survivor.name
    assert len(world.created) == 4, "no pod was made anew"
    assert [pod.incarnation for pod in world.spares.values()] == [2]
    assert "taken over by the spare" in result.news[0].message


def test_there_are_none_while_a_group_lacks_room() -> None:
    world = spared()
    (name,) = world.spares
    world.change(replicas=3)

    def step_without_room() -> list[type]:
        for pod in [pod for pod in world.pods.values() if pod.group == 2]:
            world.pods[pod.name] = replace(pod, phase=Phase.PENDING, unplaced=True, message="0/2 nodes are available")
        return kinds(world.step().actions)

    step_without_room()
    assert step_without_room() == []
    world.advance(NO_ROOM_S)
    assert step_without_room() == [EndSpare]
    assert step_without_room() == []
    assert name not in world.spares
    for pod in [pod for pod in world.pods.values() if pod.group == 2]:
        world.pods[pod.name] = replace(pod, phase=Phase.RUNNING, unplaced=False, message="")
    world.settle()
    assert len(world.spares) == 1


def test_a_spare_that_was_not_told_yet_is_no_running_stage() -> None:
    world = spared()
    world.deaf = True
    world.vanish(world.pod(0, 1).name)
    world.step()
    result = world.step()
    assert result.status.groups[0].state is GroupState.RECOVERING
    assert kinds(result.actions) == [Become]
    assert kinds(world.step().actions) == [Become], "until it is heard"
    world.deaf = False
    assert world.settle().status.ready_replicas == 2


def test_what_died_while_it_stood_by_is_not_the_group_s() -> None:
    world = spared()
    (name,) = world.spares
    world.spares[name] = replace(world.spares[name], restarts=5)
    world.vanish(world.pod(0, 1).name)
    assert world.settle().status.restarts == 1


@pytest.mark.parametrize(
    "trouble",
    [{"ready": False}, {"phase": Phase.BACKING_OFF}, {"node_lost": True}, {"deleting": True}, {"revision": "old"}],
)
def test_a_spare_that_can_t_help_is_not_taken(trouble: dict[str, object]) -> None:
    world = spared()
    (name,) = world.spares
    world.full = True
    world.spares[name] = replace(world.spares[name], **trouble)  # type: ignore[arg-type]
    world.vanish(world.pod(0, 1).name)
    made = [action for action in world.step().actions if isinstance(action, CreatePod | AdoptSpare)]
    assert kinds(made) == [CreatePod]


@pytest.mark.parametrize("trouble", [{"node_lost": True}, {"node_leaving": True}, {"phase": Phase.EXITED}])
def test_a_spare_that_is_of_no_use_is_replaced(trouble: dict[str, object]) -> None:
    world = spared()
    (name,) = world.spares
    world.spares[name] = replace(world.spares[name], **trouble)  # type: ignore[arg-type]
    assert kinds(world.step().actions) == [EndSpare, CreateSpare]
    assert [pod.incarnation for pod in world.spares.values()] == [2]


def test_one_that_can_never_start_is_not_made_again_and_again() -> None:
    world = spared()
    (name,) = world.spares
    world.spares[name] = replace(world.spares[name], phase=Phase.EXITED, exit_code=64)
    assert not world.step().actions


def test_where_there_is_no_room_none_is_asked_for() -> None:
    world = World(wanted(spares=1), full=True)
    assert not [action for action in world.settle().actions if isinstance(action, CreateSpare)]


def test_spares_follow_the_revision_and_a_group_of_an_older_one_gets_a_new_pod() -> None:
    world = spared()
    world.change(revision="rev2", rollout=replace(world.desired.rollout, partition=2))
    assert kinds(world.step().actions) == [EndSpare, CreateSpare]
    world.vanish(world.pod(0, 1).name)
    assert kinds(world.step().actions) == [CreatePod]
    assert world.pod(0, 1).revision == "rev1"


@pytest.mark.parametrize("acts", range(3))
def test_an_operator_that_dies_over_it_gives_no_incarnation_away_twice(acts: int) -> None:
    world = spared()
    world.vanish(world.pod(0, 1).name)
    world.visit(Luck(acts=acts, dies=True, unwritten=True))
    assert world.settle().status.ready_replicas == 2
    assert world.pod(0, 1).incarnation == (2 if acts else 3)
    assert len(world.spares) == 1
    assert world.settle().status.restarts <= 1
