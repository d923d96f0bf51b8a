"""Voluntary changes: which group goes, how many at once, and that its requests are over before its pods are."""

from dataclasses import replace

import pytest

from bireme.api.status import ConditionStatus
from bireme.names import ConditionType, GroupState, Reason
from bireme_operator.plan.actions import CreatePod, DeletePod, DrainGroup
from bireme_operator.plan.group import DOUBTED_S
from tests.planner.world import World, wanted


def settled(**changes: object) -> World:
    world = World(wanted(**changes))  # type: ignore[arg-type]
    world.settle()
    return world


def left(world: World) -> set[int]:
    return {pod.group for pod in world.pods.values()}


def test_all_stages_of_a_new_group_are_made_in_one_pass_the_leader_first() -> None:
    result = World(wanted(replicas=2, stages=3)).step()
    made = [(action.group, action.stage) for action in result.actions if isinstance(action, CreatePod)]
    assert made == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]


def test_an_unready_group_goes_first_when_fewer_are_wanted() -> None:
    world = settled(replicas=3)
    world.mute.add(1)
    world.advance(DOUBTED_S)
    world.desired = replace(world.desired, replicas=2)
    world.step()
    world.mute.clear()
    world.settle()
    assert left(world) == {0, 2}


def test_the_group_with_the_fewest_requests_goes_first_among_the_ready() -> None:
    world = settled(replicas=3)
    world.requests = {0: 4, 1: 1, 2: 9}
    world.desired = replace(world.desired, replicas=2)
    result = world.step()
    assert [action.group for action in result.actions if isinstance(action, DrainGroup)] == [1]


def test_a_group_is_deleted_only_when_its_requests_are_over() -> None:
    world = settled(replicas=1)
    world.requests[0] = 2
    world.desired = replace(world.desired, replicas=0)
    first = world.step()
    assert first.actions == (DrainGroup(0, world.pod(0, 0).name, 300),)
    waiting = world.step()
    assert not waiting.actions
    assert waiting.status.groups[0].state is GroupState.DRAINING
    assert waiting.status.groups[0].message == "2 requests still run"
    world.requests[0] = 0
    ended = [action for action in world.step().actions if isinstance(action, DeletePod)]
    assert len(ended) == 2


def test_a_drain_that_takes_too_long_is_ended_after_its_deadline() -> None:
    world = settled(replicas=1)
    world.requests[0] = 2
    world.desired = replace(world.desired, replicas=0, drain_timeout_s=30)
    world.step()
    world.advance(34)
    assert not world.step().actions
    world.advance(1)
    assert len(world.step().actions) == 2


def test_a_drain_that_was_not_heard_is_asked_for_again_with_the_time_that_is_left() -> None:
    world = settled(replicas=1)
    world.requests[0] = 2
    world.desired = replace(world.desired, replicas=0)
    world.step()
    world.draining.clear()
    world.advance(100)
    assert world.step().actions == (DrainGroup(0, world.pod(0, 0).name, 200),)


def test_a_group_that_never_served_is_deleted_without_a_drain() -> None:
    world = World(wanted(replicas=1))
    world.mute.add(0)
    world.step()
    world.desired = replace(world.desired, replicas=0)
    assert [type(action) for action in world.step().actions] == [DeletePod, DeletePod]


def test_stopping_ends_every_group_and_says_that_it_is_shutting_down() -> None:
    world = settled(replicas=2)
    world.requests[0] = 1
    world.desired = world.desired.stopped()
    status = world.step().status
    assert {group.reason for group in status.groups} == {Reason.SHUTTING_DOWN}
    world.requests.clear()
    for _ in range(4):
        kept = {condition.type: condition.status for condition in status.conditions}
        assert kept[ConditionType.READY] == kept[ConditionType.AVAILABLE] == ConditionStatus.FALSE
        status = world.step().status
    assert not world.pods
    assert not world.memory.groups


def test_a_group_without_pods_is_gone_at_the_next_look_which_is_at_once() -> None:
    world = settled(replicas=1)
    for _ in range(2):
        for name in list(world.pods):
            world.vanish(name)
        world.step()
    world.desired = world.desired.stopped()
    for name in list(world.pods):
        world.vanish(name)
    assert world.step().wake_at == world.now
    assert not world.step().status.groups


def test_a_group_that_comes_after_one_that_is_gone_counts_its_incarnations_on() -> None:
    world = settled(replicas=1)
    world.desired = replace(world.desired, replicas=0)
    world.settle()
    world.desired = replace(world.desired, replicas=1)
    world.settle()
    assert world.pod(0, 0).incarnation == 2


@pytest.mark.parametrize("change", [{"revision": "rev2"}, {"model_revision": "model2"}])
def test_a_change_goes_through_group_by_group_and_never_takes_a_second_ready_one(change: dict[str, str]) -> None:
    world = settled(replicas=3)
    world.desired = replace(world.desired, **change)  # type: ignore[arg-type]
    for _ in range(60):
        status = world.step().status
        if status.updated_replicas == 3 and status.ready_replicas == 3:
            break
        assert status.ready_replicas >= 2
    assert status.updated_replicas == 3
    assert left(world) == {0, 1, 2}


def test_unready_outdated_groups_are_replaced_first_and_all_at_once() -> None:
    world = settled(replicas=3)
    world.mute |= {1, 2}
    world.desired = replace(world.desired, revision="rev2")
    world.step()
    assert not any(group.draining for group in world.memory.groups.values()), "not to be heard is not to be unready"
    world.advance(DOUBTED_S)
    world.step()
    draining = {index for index, group in world.memory.groups.items() if group.draining}
    assert draining == {1, 2}


def test_a_new_revision_that_never_becomes_ready_stops_the_rollout_after_one_group() -> None:
    world = settled(replicas=3)
    world.desired = replace(world.desired, revision="rev2")
    for _ in range(20):
        world.step()
        world.mute |= {pod.group for pod in world.pods.values() if pod.revision == "rev2"}
        world.advance(10)
    old = {pod.group for pod in world.pods.values() if pod.revision == "rev1"}
    assert len(old) == 2
