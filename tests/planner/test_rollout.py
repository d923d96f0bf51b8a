"""Rollouts within their limits: surge, unavailability, partition, deadline, rollback; and what dies in the middle."""

from dataclasses import replace

import pytest

from bireme.api.status import Status
from bireme.names import ConditionType, GroupState, Reason
from bireme_operator.plan.actions import CreatePod
from bireme_operator.plan.desired import RolloutPolicy
from bireme_operator.plan.memory import Purpose
from bireme_operator.plan.observed import Phase
from tests.planner.world import Luck, World, wanted


def settled(policy: RolloutPolicy, replicas: int = 3, stages: int = 2) -> World:
    world = World(wanted(replicas=replicas, stages=stages, rollout=policy))
    world.settle()
    return world


def revisions(world: World) -> dict[int, set[str]]:
    groups = {pod.group for pod in world.pods.values()}
    return {group: {pod.revision for pod in world.pods.values() if pod.group == group} for group in sorted(groups)}


def condition(status: Status, kind: ConditionType) -> tuple[str, str, str]:
    found = next(one for one in status.conditions if one.type == kind)
    return found.status, found.reason, found.message


@pytest.mark.parametrize(("surge", "unavailable"), [(1, 0), (0, 1), (2, 0), (0, 2), (1, 1), (3, 3)])
@pytest.mark.parametrize("replicas", [1, 3, 4])
def test_a_rollout_keeps_between_its_limits_and_ends(surge: int, unavailable: int, replicas: int) -> None:
    world = settled(RolloutPolicy(surge, unavailable), replicas)
    world.change(revision="rev2")
    for _ in range(200):
        plan = world.step()
        serving = plan.status.ready_replicas
        assert serving >= replicas - unavailable
        assert len({pod.group for pod in world.pods.values()}) <= replicas + surge
        if serving == plan.status.updated_replicas == plan.status.replicas == replicas and not plan.actions:
            break
        world.advance(1)
    assert set(map(frozenset, revisions(world).values())) == {frozenset({"rev2"})}
    made = [action for action in world.created if action.revision == "rev2"]
    assert len(made) == replicas * 2, "no group is made twice"


def test_a_partition_holds_groups_back_and_lowering_it_lets_them_go() -> None:
    world = settled(RolloutPolicy(0, 1, partition=2))
    world.change(revision="rev2")
    world.settle()
    assert sorted(map(min, revisions(world).values())) == ["rev1", "rev1", "rev2"]
    world.change(rollout=RolloutPolicy(0, 1))
    world.settle()
    assert set(map(min, revisions(world).values())) == {"rev2"}


def test_a_group_that_a_partition_holds_back_is_rebuilt_wholly_from_its_own_revision() -> None:
    world = settled(RolloutPolicy(1, 0, partition=1), replicas=2)
    world.change(revision="rev2", stages=3, environment={"SHARED": "2"})
    world.settle()
    old = next(group for group, found in revisions(world).items() if found == {"rev1"})
    for name in [pod.name for pod in world.pods.values() if pod.group == old]:
        world.vanish(name)
    assert world.settle().status.ready_replicas == 2
    made = world.created[-2:]
    assert [(one.group, one.stage, one.revision, one.environment["SHARED"]) for one in made] == [
        (old, 0, "rev1", "1"),
        (old, 1, "rev1", "1"),
    ]


def test_a_stage_of_an_old_group_comes_back_beside_its_peers_as_it_was() -> None:
    world = settled(RolloutPolicy(1, 0, partition=2), replicas=2)
    world.change(revision="rev2", environment={"SHARED": "2"})
    world.settle()
    world.vanish(world.pod(0, 1).name)
    world.settle()
    assert revisions(world) == {0: {"rev1"}, 1: {"rev1"}}


def test_a_held_group_keeps_the_checkpoint_that_it_served_even_when_all_of_it_dies() -> None:
    world = settled(RolloutPolicy(1, 0, partition=1), replicas=2)
    world.change(model_revision="model2")
    world.settle()
    kept = next(index for index in (0, 1) if index not in world.served)
    for name in [pod.name for pod in world.pods.values() if pod.group == kept]:
        world.vanish(name)
    world.settle()
    assert {pod.model_revision for pod in world.pods.values() if pod.group == kept} == {"model1"}


def test_scaling_in_the_middle_keeps_the_groups_that_are_updated() -> None:
    world = settled(RolloutPolicy(0, 1, partition=2), replicas=4)
    world.change(revision="rev2")
    world.settle()
    updated = {group for group, found in revisions(world).items() if found == {"rev2"}}
    world.change(replicas=6)
    world.settle()
    assert updated < {group for group, found in revisions(world).items() if found == {"rev2"}}
    world.change(replicas=3)
    world.settle()
    assert [found for found in revisions(world).values() if found == {"rev2"}] == [{"rev2"}] * 3
    world.change(rollout=RolloutPolicy(0, 1))
    assert world.settle().status.updated_replicas == 3


def test_a_bad_revision_and_then_a_good_one_need_no_help() -> None:
    world = settled(RolloutPolicy(1, 0), replicas=2)
    world.broken.add("bad")
    world.change(revision="bad")
    for _ in range(5):
        world.step()
        world.advance(10)
    assert revisions(world) == {0: {"rev1"}, 1: {"rev1"}, 2: {"bad"}}
    world.change(revision="good")
    world.settle()
    assert set(map(min, revisions(world).values())) == {"good"}


def test_a_full_cluster_is_told_that_there_is_no_room_for_a_surge() -> None:
    world = settled(RolloutPolicy(1, 0), replicas=2)
    world.change(revision="rev2")
    world.step()
    for name, pod in world.pods.items():
        if pod.group == 2:
            world.pods[name] = replace(pod, phase=Phase.PENDING, unplaced=True, message="0/2 nodes are available")
    status = world.step().status
    assert status.ready_replicas == 2
    assert "no spare capacity" in condition(status, ConditionType.SCHEDULED)[2]
    world.change(rollout=RolloutPolicy(0, 1))
    world.settle()
    assert set(map(min, revisions(world).values())) == {"rev2"}


def test_a_rollout_that_makes_no_progress_goes_back_to_what_served() -> None:
    world = settled(RolloutPolicy(1, 0, deadline_s=60), replicas=2)
    world.broken.add("bad")
    world.change(revision="bad")
    world.step()
    world.advance(61)
    world.step()
    last = world.settle().status
    assert revisions(world).keys() == {0, 1}
    assert set(map(min, revisions(world).values())) == {"rev1"}
    assert condition(last, ConditionType.PROGRESSING)[:2] == ("False", Reason.ROLLED_BACK)
    assert condition(last, ConditionType.STALLED)[0] == "True"
    assert condition(last, ConditionType.READY)[0] == "False"
    assert condition(last, ConditionType.AVAILABLE)[0] == "True"
    assert (last.ready_replicas, last.updated_replicas, last.update_revision) == (2, 0, "bad")
    world.change(revision="rev3")
    ended = world.settle().status
    assert condition(ended, ConditionType.READY)[0] == "True"
    assert set(map(min, revisions(world).values())) == {"rev3"}


def test_a_group_of_the_new_revision_that_fails_for_good_ends_the_rollout_at_once() -> None:
    world = settled(RolloutPolicy(1, 0), replicas=2)
    world.change(revision="bad")
    world.step()
    world.kill(world.pod(2, 0).name, 64, "no such option")
    last = world.settle().status
    assert set(map(min, revisions(world).values())) == {"rev1"}
    assert "no such option" in condition(last, ConditionType.PROGRESSING)[2]


def test_a_failed_rollout_that_is_to_pause_leaves_what_serves_as_it_is() -> None:
    world = settled(RolloutPolicy(0, 1, deadline_s=60, roll_back=False), replicas=3)
    world.broken.add("bad")
    world.change(revision="bad")
    for _ in range(8):
        world.step()
        world.advance(20)
    status = world.step().status
    assert condition(status, ConditionType.PROGRESSING)[:2] == ("False", Reason.PROGRESS_DEADLINE_EXCEEDED)
    assert sorted(map(min, revisions(world).values())) == ["bad", "rev1", "rev1"]
    world.change(revision="rev1")
    world.settle()
    assert set(map(min, revisions(world).values())) == {"rev1"}


def test_the_first_rollout_has_nothing_to_go_back_to_and_goes_on_trying() -> None:
    world = World(wanted(rollout=RolloutPolicy(1, 0, deadline_s=60)))
    world.broken.add("rev1")
    world.step()
    world.advance(61)
    world.step()
    told = condition(world.step().status, ConditionType.PROGRESSING)
    assert told[:2] == ("False", Reason.PROGRESS_DEADLINE_EXCEEDED)
    world.broken.clear()
    last = world.settle().status
    assert condition(last, ConditionType.READY)[0] == condition(last, ConditionType.PROGRESSING)[0] == "True"


def test_a_paused_rollout_waits_without_losing_its_time() -> None:
    world = settled(RolloutPolicy(1, 0, deadline_s=60), replicas=2)
    world.change(revision="rev2", paused=True)
    for _ in range(4):
        assert not world.step().actions
        world.advance(50)
    world.change(paused=False)
    world.settle()
    assert set(map(min, revisions(world).values())) == {"rev2"}


def test_a_new_value_of_the_restart_annotation_makes_every_group_anew_one_after_the_other() -> None:
    world = settled(RolloutPolicy(0, 1))
    before = set(world.pods)
    world.desired = replace(world.desired, restart="2026-11-28")
    for _ in range(30):
        assert world.step().status.ready_replicas >= 2
        world.advance(1)
    assert not before & set(world.pods)
    assert len(world.created) == 12, "once each"


def test_a_restart_clears_a_spent_budget() -> None:
    world = settled(RolloutPolicy(0, 1), replicas=1)
    policy = replace(world.desired.recovery, budget=0)
    world.desired = replace(world.desired, recovery=policy)
    world.kill(world.pod(0, 1).name)
    assert world.settle().status.groups[0].state is GroupState.FAILED
    world.desired = replace(world.desired, restart="again")
    assert world.settle().status.groups[0].state is GroupState.SERVING


def test_a_failed_group_is_resumed_and_no_other_is_touched() -> None:
    world = settled(RolloutPolicy(0, 1), replicas=2)
    other = world.pod(1, 0).name
    world.desired = replace(world.desired, recovery=replace(world.desired.recovery, budget=0))
    world.kill(world.pod(0, 1).name)
    assert world.settle().status.groups[0].state is GroupState.FAILED
    world.desired = replace(world.desired, resume="again")
    status = world.settle().status
    assert (status.groups[0].state, status.resume) == (GroupState.SERVING, "again")
    assert world.pod(1, 0).name == other
    world.kill(world.pod(0, 1).name)
    assert world.settle().status.groups[0].state is GroupState.FAILED, "a fresh budget, not an endless one"


def test_a_rollout_that_was_given_up_is_tried_once_more_when_it_is_resumed() -> None:
    world = settled(RolloutPolicy(1, 0, deadline_s=60), replicas=2)
    world.broken.add("bad")
    world.change(revision="bad")
    world.step()
    world.advance(61)
    world.step()
    assert condition(world.settle().status, ConditionType.STALLED)[:2] == ("True", Reason.ROLLED_BACK)
    world.broken.clear()
    world.desired = replace(world.desired, resume="once more")
    status = world.settle().status
    assert set(map(min, revisions(world).values())) == {"bad"}
    assert condition(status, ConditionType.STALLED)[0] == "False"
    world.settle()
    assert world.memory.progress is not None
    assert not world.memory.progress.failed


def test_the_last_outdated_group_leaves_for_good_when_another_has_its_place() -> None:
    world = settled(RolloutPolicy(1, 0), replicas=1)
    world.change(revision="rev2")
    world.step()
    world.step()
    world.step()
    draining = world.memory.groups[0].draining
    assert draining is None or draining.purpose is Purpose.SCALE_DOWN
    world.settle()
    assert revisions(world) == {1: {"rev2"}}


def test_an_operator_that_has_heard_nobody_yet_takes_no_group_for_unready() -> None:
    world = settled(RolloutPolicy(0, 1))
    world.change(revision="rev2")
    world.mute |= {0, 1, 2}
    for _ in range(10):
        assert not world.step().actions
        world.advance(20)
    world.mute.clear()
    world.settle()
    assert set(map(min, revisions(world).values())) == {"rev2"}


@pytest.mark.parametrize(("done", "made"), [(0, [1, 1, 3, 3]), (1, [1, 1, 2, 3]), (2, [1, 1, 2, 2])])
def test_a_group_that_was_made_anew_by_an_operator_that_then_ended_is_not_made_anew_again(
    done: int, made: list[int]
) -> None:
    """A number that was put aside and perhaps used is passed over."""
    world = settled(RolloutPolicy(0, 1), replicas=1)
    world.change(revision="rev2")
    while not any(isinstance(action, CreatePod) for action in world.step_without_applying().actions):
        world.step()
    world.visit(Luck(acts=done, dies=True, unwritten=True))
    world.settle()
    assert [pod.incarnation for pod in world.created] == made
