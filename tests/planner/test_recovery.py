"""Restart in place, replace, wait, give up: which of them, when, and what it costs of the budget."""

from dataclasses import replace

import pytest

from bireme.names import Event, GroupState, Reason
from bireme_operator.plan.actions import CreatePod, DeletePod, TellLeader
from bireme_operator.plan.desired import RecoveryPolicy
from bireme_operator.plan.observed import Phase
from bireme_operator.plan.plan import plan
from bireme_operator.plan.recovery import delay_s, in_a_row
from tests.planner.world import World, wanted

POLICY = RecoveryPolicy(budget=6, window_s=3600, initial_s=1, longest_s=300)


def settled(**changes: object) -> World:
    world = World(wanted(**changes))  # type: ignore[arg-type]
    world.settle()
    return world


@pytest.mark.parametrize(
    ("deaths", "wait"), [(0, 0), (1, 0), (2, 1), (3, 2), (4, 4), (10, 256), (11, 300), (1_000_000, 300)]
)
def test_the_first_start_follows_at_once_and_then_the_wait_doubles_up_to_the_longest(deaths: int, wait: float) -> None:
    assert delay_s(deaths, POLICY) == wait


@pytest.mark.parametrize(
    ("deaths", "count"),
    [([], 0), ([5.0], 1), ([0.0, 10.0, 20.0], 3), ([0.0, 700.0, 710.0], 2), ([0.0, 10.0, 700.0], 1)],
)
def test_a_calm_of_twice_the_longest_wait_begins_a_new_row_of_deaths(deaths: list[float], count: int) -> None:
    assert in_a_row(deaths, POLICY) == count


def test_a_process_that_ends_is_left_to_the_kubelet_and_counted_once() -> None:
    world = settled()
    world.kill(world.pod(0, 1).name)
    result = world.step()
    assert result.actions == (TellLeader(world.pod(0, 1).name, world.pod(0, 0).address, 1),) or not result.actions
    assert [group.restarts for group in world.settle().status.groups] == [1, 0]
    assert len(world.created) == 4


def test_a_stage_that_vanished_is_made_anew_alone_under_a_higher_incarnation() -> None:
    world = settled()
    survivor = world.pod(0, 0)
    world.vanish(world.pod(0, 1).name)
    world.settle()
    assert world.pod(0, 0) == survivor
    assert (world.pod(0, 1).incarnation, len(world.created)) == (2, 5)


def test_members_are_told_the_address_of_a_leader_that_was_made_anew() -> None:
    world = settled(stages=3)
    world.vanish(world.pod(1, 0).name)
    world.settle()
    leader = world.pod(1, 0)
    assert leader.incarnation == 2
    assert {world.pod(1, stage).told_leader for stage in (1, 2)} == {2}


@pytest.mark.parametrize(("code", "reason"), [(64, Reason.BAD_CONFIGURATION), (65, Reason.BAD_CHECKPOINT)])
def test_a_final_exit_fails_the_group_with_the_worker_s_own_words_and_frees_the_rest(code: int, reason: Reason) -> None:
    world = settled()
    world.kill(world.pod(0, 1).name, code, "tensor 2 does not divide 9 heads")
    failed, other = world.settle().status.groups
    assert (failed.state, failed.reason) == (GroupState.FAILED, reason)
    assert failed.message == f"stage 1: tensor 2 does not divide 9 heads (exit code {code})"
    assert other.state is GroupState.SERVING
    assert [pod.phase for pod in world.pods.values() if pod.group == 0] == [Phase.EXITED]
    assert len(world.created) == 4, "the same start is not tried again"


def test_a_failed_group_tries_again_when_its_revision_changes() -> None:
    world = settled(replicas=1)
    world.kill(world.pod(0, 1).name, 64, "no such option")
    world.settle()
    world.desired = replace(world.desired, replicas=1, generation=2)
    assert world.settle().status.groups[0].state is GroupState.FAILED, "another generation of the same pods"
    world.desired = replace(world.desired, revision="rev2", generation=3)
    assert world.settle().status.groups[0].state is GroupState.SERVING


def test_an_exit_with_zero_that_nobody_asked_for_is_answered_by_a_new_pod() -> None:
    world = settled(replicas=1)
    world.kill(world.pod(0, 0).name, 0, "drained")
    assert world.settle().status.groups[0].restarts == 1
    assert world.pod(0, 0).incarnation == 2


def test_a_pod_that_crashes_again_and_again_in_place_is_made_anew() -> None:
    world = settled(replicas=1)
    first = world.pod(0, 1).name
    for _ in range(4):
        world.kill(first, 70)
        world.step()
        while first in world.wake_up:
            world.advance(1)
            world.step()
    world.settle()
    assert first not in world.pods
    assert world.pod(0, 1).incarnation == 2


def test_more_deaths_than_the_budget_allows_fail_the_group_and_no_other() -> None:
    world = settled()
    for _ in range(7):
        world.vanish(world.pod(0, 1).name)
        world.settle()
        if world.memory.groups[0].failure:
            break
    failed, other = world.settle().status.groups
    assert (failed.state, failed.reason, failed.restarts) == (GroupState.FAILED, Reason.BUDGET_EXHAUSTED, 7)
    assert "7 restarts within 3600 s, spec.recovery.restartBudget allows 6" in failed.message
    assert other.state is GroupState.SERVING


def test_deaths_that_left_the_window_cost_nothing() -> None:
    world = settled(replicas=1)
    for _ in range(12):
        world.vanish(world.pod(0, 1).name)
        world.settle()
        world.advance(1000)
    assert world.settle().status.groups[0].state is GroupState.SERVING


def test_a_second_loss_waits_and_says_so() -> None:
    world = settled(replicas=1)
    for _ in range(2):
        world.vanish(world.pod(0, 1).name)
        result = world.step()
    assert not [action for action in result.actions if isinstance(action, CreatePod)]
    assert result.status.groups[0].state is GroupState.BACKING_OFF
    assert result.wake_at == world.now + 1


def test_an_end_that_was_asked_for_is_no_death() -> None:
    world = settled(replicas=1)
    name = world.pod(0, 1).name
    world.pods[name] = replace(world.pods[name], deleting=True)
    world.step()
    world.vanish(name)
    assert world.settle().status.restarts == 0


def test_of_two_living_pods_of_a_stage_the_older_is_ended() -> None:
    world = settled(replicas=1)
    twin = replace(world.pod(0, 1), name="twin", incarnation=5)
    old = world.pod(0, 1).name
    world.pods["twin"] = twin
    result = world.step()
    assert [action.name for action in result.actions if isinstance(action, DeletePod)] == [old]
    world.vanish("twin")
    world.settle()
    assert world.pod(0, 1).incarnation == 6, "one more than the highest ever seen"


def test_nothing_is_done_to_a_paused_deployment() -> None:
    world = settled()
    world.desired = replace(world.desired, paused=True)
    world.vanish(world.pod(0, 0).name)
    result = world.step()
    assert not result.actions
    assert result.status.groups[0].state is GroupState.RECOVERING


def test_transitions_are_told_once_each() -> None:
    world = World(wanted(replicas=1))
    told = [item.event for _ in range(4) for item in world.step().news]
    assert told == [Event.GROUP_CREATED, Event.GROUP_SERVING]
    world.vanish(world.pod(0, 1).name)
    told = [item.event for _ in range(4) for item in world.step().news]
    assert told == [Event.STAGE_REPLACED, Event.GROUP_LOST_PART, Event.GROUP_SERVING]


def test_an_operator_that_forgot_all_counts_above_the_incarnations_it_sees() -> None:
    world = settled(replicas=1)
    world.vanish(world.pod(0, 1).name)
    world.settle()
    world.memory = type(world.memory)()
    result = plan(world.desired, world.observe(), world.memory, world.now)
    assert not result.actions
    assert result.memory.groups[0].incarnations == {0: 1, 1: 2}
