"""Two troubles at a time, for hours: what one leaves behind must not hold up what the other asks for."""

from dataclasses import replace

import pytest

from bireme.names import GroupState, Reason
from bireme_operator.plan.desired import RolloutPolicy
from bireme_operator.plan.plan import Plan
from tests.planner.cluster import Cluster
from tests.planner.world import wanted


def cluster(nodes: int, *, restart_budget: int = 5, **changes: object) -> Cluster:
    """Groups of two stages, on nodes with room for two each; they serve."""
    desired = wanted(drain_timeout_s=10, **changes)  # type: ignore[arg-type]
    made = Cluster(replace(desired, recovery=replace(desired.recovery, budget=restart_budget)))
    for number in range(nodes):
        made.add_node(2, f"r{number}")
    go_on(made, 20)
    return made


def go_on(some: Cluster, seconds: float, pace_s: float = 2) -> Plan:
    """Let time go by; the last plan."""
    until = some.now + seconds
    while some.now < until:
        result = some.step()
        some.advance(pace_s)
    return result


def node_of(some: Cluster, group: int) -> str:
    return some.pod(group, 0).node


@pytest.mark.parametrize("change", [{"restart": "now"}, {"revision": "rev2"}])
@pytest.mark.parametrize(("surge", "unavailable"), [(0, 1), (1, 0), (1, 1)])
def test_pods_that_a_dead_node_keeps_hold_up_no_rollout(change: dict[str, str], surge: int, unavailable: int) -> None:
    some = cluster(9, replicas=3, rollout=RolloutPolicy(surge, unavailable))
    some.fail(node_of(some, 0))
    assert go_on(some, 600, 5).status.ready_replicas == 3
    some.change(**change)
    status = go_on(some, 1500, 10).status
    assert (status.ready_replicas, status.updated_replicas) == (3, 3)


def test_a_rollout_that_ended_beside_a_group_on_a_silent_node_is_not_taken_back_hours_later() -> None:
    some = cluster(7, replicas=3, rollout=RolloutPolicy(1, 0), restart_budget=0)
    some.silent.add(node_of(some, 0))
    go_on(some, 100, 5)
    some.change(revision="rev2")
    go_on(some, 300, 5)
    go_on(some, 7200, 60)
    some.kill(next(pod.name for pod in some.pods.values() if not pod.deleting), 1)
    status = go_on(some, 300, 5).status
    assert {group.reason for group in status.groups if group.state is GroupState.FAILED} == {Reason.BUDGET_EXHAUSTED}
    assert {pod.revision for pod in some.pods.values() if not pod.deleting} == {"rev2"}


@pytest.mark.parametrize("budget", [0, 1])
def test_a_failed_group_keeps_no_other_on_a_node_that_is_to_be_emptied(budget: int) -> None:
    some = cluster(6, replicas=3, unavailable_groups=budget, restart_budget=0)
    some.kill(some.pod(2, 1).name, 1)
    go_on(some, 20)
    node = node_of(some, 0)
    some.cordoned.add(node)
    assert go_on(some, 300, 5).status.ready_replicas == 2
    assert node not in {pod.node for pod in some.pods.values()}


def test_a_successor_without_room_holds_up_no_reload() -> None:
    some = cluster(3, replicas=2, unavailable_groups=0)
    some.foreign["n2"] = 2
    some.cordoned.add(node_of(some, 0))
    go_on(some, 60)
    some.change(model_revision="model2")
    go_on(some, 300, 5)
    assert some.served == {0: "model2", 1: "model2"}


def test_when_a_move_is_taken_back_the_group_goes_that_never_served() -> None:
    some = cluster(4, replicas=3, unavailable_groups=0)
    some.cordoned.add(node_of(some, 0))
    go_on(some, 30)  # group 3 is in its place, and index 0 is free for the next successor
    other = node_of(some, 1)
    some.cordoned.add(other)
    go_on(some, 60)
    for _ in range(3):
        some.kill(some.pod(3, 1).name, 1)
    some.cordoned.discard(other)
    go_on(some, 60)
    assert {pod.group for pod in some.pods.values()} == {1, 2, 3}
