"""A drain that is not wanted any more is taken back while the group is whole; what others asked for is not."""

from dataclasses import replace

import pytest

from bireme.names import GroupState
from bireme_operator.plan.actions import CreatePod, DrainGroup, UndrainGroup
from bireme_operator.plan.desired import RolloutPolicy
from tests.planner.world import Luck, World, wanted


def draining(world: World) -> set[int]:
    return {index for index, group in world.memory.groups.items() if group.draining}


def busy(replicas: int, **changes: object) -> World:
    """All groups serve and have a request that does not end."""
    world = World(wanted(replicas=replicas, **changes))  # type: ignore[arg-type]
    world.settle()
    world.requests = dict.fromkeys(range(replicas + 1), 1)
    return world


def test_a_scale_down_that_is_cancelled_keeps_the_group_and_its_requests() -> None:
    world = busy(3)
    world.change(replicas=2)
    world.step()
    assert draining(world) == {2}
    world.change(replicas=3)
    taken_back = world.step()
    assert [type(action) for action in taken_back.actions] == [UndrainGroup]
    assert not draining(world)
    assert world.settle().status.ready_replicas == 3
    assert (len(world.created), world.deleted) == (6, [])


def test_an_undrain_that_was_not_heard_is_said_again_and_one_that_was_is_not() -> None:
    world = busy(2)
    leader = world.pod(1, 0).name
    world.change(replicas=1)
    world.step()
    world.change(replicas=2)
    world.step()
    assert not world.step().actions
    world.draining.add(leader)  # the drain came late
    assert world.step().actions == (UndrainGroup(1, leader),)


@pytest.mark.parametrize("dies", [False, True])
def test_a_rollout_that_is_taken_back_takes_its_drains_back(dies: bool) -> None:
    world = busy(2, rollout=RolloutPolicy(0, 1))
    world.change(revision="rev2")
    world.visit(Luck(dies=dies))
    assert draining(world) == {0}
    world.change(revision="rev1")
    world.visit(Luck(dies=dies))
    assert world.settle().status.ready_replicas == 2
    assert (len(world.created), world.deleted) == (4, [])


def test_a_rollout_that_is_held_takes_its_drains_back() -> None:
    world = busy(2, rollout=RolloutPolicy(0, 1))
    world.change(revision="rev2")
    world.step()
    world.change(rollout=RolloutPolicy(0, 1, partition=2))
    world.step()
    assert not draining(world)
    assert world.settle().status.ready_replicas == 2
    assert {pod.revision for pod in world.pods.values()} == {"rev1"}


def test_a_group_that_has_lost_a_pod_already_goes_and_another_one_comes() -> None:
    world = busy(2)
    world.change(replicas=1)
    world.requests.clear()
    world.step()
    world.visit(Luck(acts=1))
    assert len(world.deleted) == 1
    world.change(replicas=2)
    assert not [action for action in world.step().actions if isinstance(action, UndrainGroup)]
    assert world.settle().status.ready_replicas == 2


def test_a_drain_that_somebody_else_asked_for_is_left_alone() -> None:
    world = busy(1)
    world.draining.add(world.pod(0, 0).name)
    result = world.step()
    assert not result.actions
    assert result.status.groups[0].state is GroupState.DRAINING


def test_a_leader_that_is_being_deleted_drains_to_its_end() -> None:
    world = busy(2)
    leader = world.pod(1, 0)
    world.change(replicas=1)
    world.step()
    world.change(replicas=2)
    world.pods[leader.name] = replace(leader, deleting=True)
    assert not [action for action in world.step().actions if isinstance(action, UndrainGroup)]


def test_a_group_whose_node_is_to_be_emptied_is_not_taken_back_before_the_node_is() -> None:
    world = busy(2)
    for name, pod in world.pods.items():
        if pod.group == 0:
            world.pods[name] = replace(pod, node_leaving=True)
    for _ in range(4):
        world.step()
    assert draining(world) == {0}
    world.change(replicas=3)
    made = [action for action in world.step().actions if isinstance(action, CreatePod | UndrainGroup)]
    assert {type(action) for action in made} == {CreatePod}
    for name, pod in world.pods.items():
        world.pods[name] = replace(pod, node_leaving=False)
    world.change(replicas=4)
    again = world.step().actions
    assert [type(action) for action in again] == [UndrainGroup]
    assert not world.deleted


def test_a_group_that_began_to_serve_unnoticed_is_drained_before_it_goes() -> None:
    world = World(wanted(replicas=1))
    world.step()
    world.step()
    world.memory = replace(
        world.memory, groups={0: replace(world.memory.groups[0], epoch=0, state=GroupState.STARTING)}
    )
    world.requests[0] = 1
    world.change(replicas=0)
    assert [type(action) for action in world.step().actions] == [DrainGroup]
