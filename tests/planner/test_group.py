"""The truth about one group: what a document may claim, and what overrules it."""

from dataclasses import replace

import pytest

from bireme.names import GroupState, Reason
from bireme_operator.plan.actions import DeletePod
from bireme_operator.plan.drain import HANDOVER_S
from bireme_operator.plan.observed import LeaderView, Observed, Phase, PodView
from bireme_operator.plan.plan import Plan, plan
from bireme_operator.plan.rest import Rest
from bireme_operator.plan.suspects import suspects
from tests.planner.world import World, document, wanted


def serving_world() -> World:
    world = World(wanted(replicas=1))
    world.settle()
    return world


def judged(world: World, observed: Observed, later: float = 0.0) -> tuple[GroupState, str]:
    result: Plan = plan(world.desired, observed, world.memory, world.now + later)
    return result.status.groups[0].state, result.status.groups[0].reason


def seen(world: World, pods: list[PodView], **leader: object) -> Observed:
    view = LeaderView(world.pod(0, 0).name, document(world.pod(0, 0)), world.now)
    return Observed(tuple(pods), {0: replace(view, **leader)})  # type: ignore[arg-type]


def test_a_group_serves_while_its_leader_says_so() -> None:
    world = serving_world()
    assert judged(world, world.observe()) == (GroupState.SERVING, Reason.NONE)


def test_a_broken_watch_is_never_called_serving() -> None:
    world = serving_world()
    observed = seen(world, list(world.pods.values()), connected=False)
    assert judged(world, observed) == (GroupState.RECOVERING, Reason.WORKER_UNREACHABLE)


def test_a_leader_that_can_t_be_understood_is_told_and_its_pods_stay() -> None:
    world = serving_world()
    leader = world.pod(0, 0)
    pods = tuple(replace(pod, node="n1") for pod in world.pods.values())
    observed = Observed(pods, {}, strangers={leader.name: "the stage speaks wire version 9"})
    result = plan(world.desired, observed, world.memory, world.now + 3600)
    told = result.status.groups[0]
    assert (told.state, told.reason) == (GroupState.RECOVERING, Reason.WRONG_VERSION)
    assert told.message == "the stage speaks wire version 9"
    assert not result.actions
    assert not suspects(observed, world.now + 3600), "somebody speaks there"


def test_a_restart_is_the_way_out_for_leaders_that_can_t_be_understood() -> None:
    world = World(wanted(replicas=2))
    world.settle()
    world.change(restart="now")
    strangers = {pod.name: "the stage speaks wire version 9" for pod in world.pods.values() if pod.stage == 0}
    observed = Observed(tuple(world.pods.values()), {}, strangers=strangers)
    after = plan(world.desired, observed, world.memory, world.now + 3600).memory
    assert all(group.draining for group in after.groups.values())


def test_what_nobody_can_ask_to_drain_is_told_to_end_leader_first_and_the_others_stay_until_it_has() -> None:
    """Its leader lets its requests finish when it is told to end, as it would for `kubectl delete pod`."""
    world = serving_world()
    world.change(restart="now")
    leader, other = world.pod(0, 0), world.pod(0, 1)
    strangers = {leader.name: "the stage speaks wire version 9"}
    memory = plan(world.desired, Observed((leader, other), {}, strangers=strangers), world.memory, world.now).memory

    def ends(*pods: PodView) -> dict[str, float]:
        found = plan(world.desired, Observed(pods, {}, strangers=strangers), memory, world.now + 1).actions
        return {one.name: one.grace_s for one in found if isinstance(one, DeletePod)}

    assert ends(leader, other) == {leader.name: world.desired.drain_timeout_s - 1 + HANDOVER_S}
    going = replace(leader, deleting=True, end_by=world.now + 60)
    assert ends(going, other) == {}, "the other stages compute what it lets finish"
    assert ends(replace(going, end_by=world.now - 2), other).keys() == {other.name}, "its node may be dead"
    look = Observed((going, other), {}, strangers=strangers)
    assert plan(world.desired, look, memory, world.now + 1, Rest()).wake_at == world.now + 62
    assert ends(other).keys() == {other.name}


def test_a_leader_that_can_t_be_understood_is_no_lost_stage_where_a_spare_has_become_one() -> None:
    world = serving_world()
    leader = world.pod(0, 0)
    pods = tuple(replace(pod, spare=pod.stage, told_leader=0) for pod in world.pods.values())
    told = judged(world, Observed(pods, {}, strangers={leader.name: "the stage speaks wire version 9"}))
    assert told == (GroupState.RECOVERING, Reason.WRONG_VERSION)


def test_a_watch_that_is_silent_for_three_intervals_is_never_called_serving() -> None:
    world = serving_world()
    observed = seen(world, list(world.pods.values()))
    assert judged(world, observed, later=2.9)[0] is GroupState.SERVING
    assert judged(world, observed, later=3.0) == (GroupState.RECOVERING, Reason.WORKER_UNREACHABLE)


@pytest.mark.parametrize(("stage", "reason"), [(0, Reason.LEADER_LOST), (1, Reason.STAGE_LOST)])
def test_an_exited_stage_overrules_a_leader_that_still_says_serving(stage: int, reason: Reason) -> None:
    world = serving_world()
    pods = [replace(pod, phase=Phase.EXITED, exit_code=0) if pod.stage == stage else pod for pod in world.pods.values()]
    assert judged(world, seen(world, pods)) == (GroupState.RECOVERING, reason)


def test_the_word_of_a_leader_s_predecessor_is_not_believed() -> None:
    world = serving_world()
    stale = seen(world, list(world.pods.values()), pod="an-older-pod")
    assert judged(world, stale) == (GroupState.RECOVERING, Reason.LEADER_LOST)


def test_a_group_that_never_served_is_starting_whatever_is_missing() -> None:
    world = World(wanted(replicas=1))
    world.mute.add(0)
    world.step()
    assert judged(world, world.observe()) == (GroupState.STARTING, Reason.PULLING)


def test_a_state_that_this_operator_does_not_know_is_not_taken_for_serving() -> None:
    world = serving_world()
    strange = document(world.pod(0, 0), state="Dreaming", reason="FarFuture")
    assert judged(world, seen(world, list(world.pods.values()), document=strange))[0] is GroupState.RECOVERING


def test_since_moves_with_the_state_only() -> None:
    world = serving_world()
    before = world.step().status.groups[0].since
    world.advance(100)
    assert world.step().status.groups[0].since == before
    world.mute.add(0)
    assert world.step().status.groups[0].since != before


def test_the_time_to_serve_again_is_measured_from_the_loss() -> None:
    world = serving_world()
    world.vanish(world.pod(0, 1).name)
    world.mute.add(0)
    world.step()
    world.advance(2.5)
    world.mute.clear()
    world.step()
    assert world.step().status.groups[0].timings.total_milliseconds == 2500


def test_of_a_leader_that_somebody_deleted_nothing_more_is_told() -> None:
    world = serving_world()
    pods = [replace(pod, deleting=pod.stage == 0) for pod in world.pods.values()]
    result = plan(world.desired, seen(world, pods), world.memory, world.now)
    assert result.status.groups[0].reason == Reason.LEADER_LOST
    assert result.status.groups[0].message == "stage 0 is being started again"


def test_an_end_long_ago_is_not_told_as_the_cause_of_what_is_lost_today() -> None:
    world = serving_world()
    world.kill(world.pod(0, 1).name, message="out of memory")
    world.settle()
    assert "out of memory" in world.memory.groups[0].last_death
    world.advance(3600)
    world.step()
    pods = [replace(pod, deleting=pod.stage == 0) for pod in world.pods.values()]
    result = plan(world.desired, seen(world, pods), world.memory, world.now)
    assert result.status.groups[0].message == "stage 0 is being started again"
