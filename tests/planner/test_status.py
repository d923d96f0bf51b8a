"""Conditions and counts: all six from the first visit, and each true only while it is."""

from dataclasses import replace

import msgspec
import pytest

from bireme.names import ConditionType, Reason
from bireme_operator.plan.memory import Memory
from bireme_operator.plan.plan import Plan
from tests.planner.world import World, wanted


def holding(result: Plan) -> set[str]:
    return {condition.type for condition in result.status.conditions if condition.status == "True"}


def reason(result: Plan, kind: ConditionType) -> str:
    return next(condition.reason for condition in result.status.conditions if condition.type == kind)


def test_all_conditions_are_set_on_the_first_visit() -> None:
    result = World(wanted()).step()
    assert {condition.type for condition in result.status.conditions} == {kind.value for kind in ConditionType}
    assert holding(result) == {"Progressing", "Reconciling"}
    assert reason(result, ConditionType.READY) == Reason.NO_GROUP_SERVING


def test_a_deployment_whose_groups_all_serve_is_ready_and_settled() -> None:
    result = World(wanted()).settle()
    assert holding(result) == {"Ready", "Available", "Progressing", "Scheduled"}
    assert (result.status.replicas, result.status.ready_replicas, result.status.updated_replicas) == (2, 2, 2)
    assert result.status.topology == "1x2"
    assert result.status.model_revision == "model1"


def test_one_lost_group_of_two_leaves_the_deployment_available_but_not_ready() -> None:
    world = World(wanted())
    world.settle()
    world.vanish(world.pod(0, 1).name)
    result = world.step()
    assert {"Available", "Reconciling"} <= holding(result)
    assert "Ready" not in holding(result)
    assert reason(result, ConditionType.READY) == Reason.SOME_GROUPS_SERVING


def test_a_failure_that_nothing_will_mend_stalls_with_the_worker_s_words() -> None:
    world = World(wanted(replicas=1))
    world.settle()
    world.kill(world.pod(0, 0).name, 65, "model.safetensors is truncated")
    result = world.settle()
    assert holding(result) == {"Scheduled", "Stalled"}
    stalled = next(c for c in result.status.conditions if c.type == ConditionType.STALLED)
    assert stalled.reason == Reason.BAD_CHECKPOINT
    assert "model.safetensors is truncated" in stalled.message


@pytest.mark.parametrize(
    ("change", "expected"),
    [({"replicas": 0}, Reason.SCALED_TO_ZERO), ({"paused": True}, Reason.PAUSED)],
)
def test_an_unusual_wish_is_the_reason_that_is_given(change: dict[str, object], expected: Reason) -> None:
    world = World(wanted())
    world.settle()
    world.desired = replace(world.desired, **change)  # type: ignore[arg-type]
    assert reason(world.step(), ConditionType.RECONCILING) == expected


def test_a_condition_keeps_its_time_while_it_does_not_change() -> None:
    world = World(wanted())
    before = {c.type: c.last_transition_time for c in world.settle().status.conditions}
    world.advance(50)
    assert {c.type: c.last_transition_time for c in world.step().status.conditions} == before


def test_what_must_be_remembered_survives_being_written_down() -> None:
    world = World(wanted())
    world.settle()
    world.kill(world.pod(0, 0).name, 64, "no")
    world.vanish(world.pod(1, 1).name)
    world.settle()
    world.desired = replace(world.desired, replicas=1)
    world.requests[1] = 1
    world.step()
    assert msgspec.json.decode(msgspec.json.encode(world.memory), type=Memory) == world.memory


def test_a_message_of_any_length_fits_the_status() -> None:
    world = World(wanted(replicas=1))
    world.settle()
    world.kill(world.pod(0, 0).name, 64, "x" * 5000)
    assert len(world.settle().status.groups[0].message) == 1024
