"""How many groups the load needs: up at once, down after a while, to none after a time without any request."""

from dataclasses import replace

import pytest

from bireme.names import GroupState
from bireme_operator.plan.autoscale import Scaled, autoscaled, needed
from bireme_operator.plan.demand import Counts, Demand, demand_of, percentile
from bireme_operator.plan.desired import Desired, ScalingPolicy
from bireme_operator.plan.memory import GroupMemory, Memory
from tests.planner.world import wanted

POLICY = ScalingPolicy(fewest=1, most=10, slots=64, queued=4, first_token_s=2.0, calm_s=300.0)
TO_ZERO = replace(POLICY, fewest=0, idle_s=600.0)
IDLE = Demand()


def wish(policy: ScalingPolicy = POLICY, replicas: int = 1) -> Desired:
    return wanted(replicas, autoscaling=policy)


class Scaler:
    """Looks at one demand after another. Groups serve as soon as they are wanted."""

    def __init__(self, policy: ScalingPolicy = POLICY, replicas: int = 1) -> None:
        self.wish = wish(policy, replicas)
        self.memory = Memory()
        self.now = 1000.0

    def look(self, demand: Demand | None, after_s: float = 0.0) -> int:
        return self.decide(demand, after_s).desired.replicas

    def decide(self, demand: Demand | None, after_s: float = 0.0) -> Scaled:
        self.now += after_s
        scaled = autoscaled(self.wish, self.memory, demand, self.now)
        serving = {
            index: GroupMemory(index, self.now, None, GroupState.SERVING) for index in range(scaled.desired.replicas)
        }
        self.memory = replace(scaled.memory, groups=serving)
        return scaled


def test_it_begins_with_the_replicas_of_the_spec_within_its_limits() -> None:
    assert Scaler(replicas=3).look(None) == 3
    assert Scaler(replicas=30).look(None) == 10
    assert Scaler(replace(POLICY, fewest=2), replicas=1).look(None) == 2


def test_a_queue_is_shared_by_as_many_groups_as_its_target_asks_for_at_once() -> None:
    scaler = Scaler()
    assert scaler.look(Demand(waiting=9, busy=True)) == 3
    assert scaler.look(Demand(waiting=4000, busy=True)) == 10


def test_groups_go_when_fewer_would_have_done_for_the_whole_time_and_only_as_many() -> None:
    scaler = Scaler()
    scaler.look(Demand(waiting=32, busy=True))
    assert scaler.look(Demand(running=1, busy=True), 10) == 8
    assert scaler.look(Demand(waiting=10, busy=True), 100) == 8
    assert scaler.look(Demand(running=1, busy=True), 199) == 8
    assert scaler.look(Demand(running=1, busy=True), 1) == 3, "three were needed in the meantime"


def test_a_need_that_comes_back_begins_the_wait_anew() -> None:
    scaler = Scaler()
    scaler.look(Demand(waiting=32, busy=True))
    scaler.look(Demand(busy=True), 10)
    scaler.look(Demand(waiting=32, busy=True), 280)
    assert scaler.look(Demand(busy=True), 20) == 8
    assert scaler.look(Demand(busy=True), 299) == 8


def test_groups_that_are_full_of_running_requests_are_needed_although_nobody_waits() -> None:
    scaler = Scaler(replicas=4)
    scaler.look(Demand(running=130, busy=True))
    assert scaler.look(Demand(running=130, busy=True), 1000) == 3


def test_first_tokens_that_come_too_late_ask_for_more_groups_in_proportion() -> None:
    slow = Demand(running=10, busy=True, first_token_s=3.0)
    assert needed(POLICY, slow, serving=4, replicas=4) == 6
    assert needed(POLICY, replace(slow, first_token_s=60.0), serving=2, replicas=2) == 4, (
        "never more than twice as many"
    )
    assert needed(POLICY, replace(slow, first_token_s=2.1), serving=4, replicas=4) == 4, "about right"
    assert needed(POLICY, slow, serving=3, replicas=4) == 4, "help is on its way"
    assert needed(POLICY, replace(slow, first_token_s=0.5), serving=4, replicas=4) == 3, "one fewer is tried"


def test_what_is_not_aimed_at_is_not_looked_at() -> None:
    only_queue = replace(POLICY, first_token_s=None)
    assert needed(only_queue, Demand(first_token_s=100.0), serving=1, replicas=1) == 1
    assert needed(replace(POLICY, queued=None), Demand(waiting=1000), serving=1, replicas=1) == 1


def test_all_groups_go_after_a_time_without_a_request_and_one_comes_back_with_the_first() -> None:
    scaler = Scaler(TO_ZERO)
    scaler.look(IDLE)
    assert scaler.look(Demand(busy=True), 599) == 1, "a short request between two looks is one"
    scaler.look(IDLE, 1)
    assert scaler.look(IDLE, 599) == 1
    assert scaler.look(IDLE, 1) == 0
    assert scaler.look(IDLE, 10_000) == 0
    assert scaler.look(Demand(waiting=1, busy=True), 1) == 1
    assert scaler.look(Demand(waiting=9, busy=True), 1) == 3


def test_without_an_idle_time_the_last_group_stays_and_none_stays_none() -> None:
    never = replace(TO_ZERO, idle_s=None)
    assert Scaler(never, replicas=1).look(IDLE, 10_000) == 1
    assert Scaler(never, replicas=0).look(IDLE) == 0


def test_when_no_router_can_be_read_nothing_changes_and_idle_time_is_no_proof() -> None:
    scaler = Scaler(TO_ZERO, replicas=3)
    assert [scaler.look(None, 1000) for _ in range(3)] == [3, 3, 3]


def test_another_number_in_the_spec_is_where_it_begins_anew() -> None:
    scaler = Scaler()
    scaler.look(Demand(waiting=32, busy=True))
    scaler.wish = wish(replicas=5)
    assert scaler.look(None) == 5


def test_it_says_when_it_is_to_be_asked_again_although_nothing_happens() -> None:
    scaler = Scaler(TO_ZERO, replicas=2)
    assert scaler.decide(IDLE).due == scaler.now + 300
    scaler.decide(IDLE, 300)
    assert scaler.decide(IDLE, 1).due == scaler.now + 299
    scaler.decide(IDLE, 299)
    assert scaler.decide(IDLE).due is None


@pytest.mark.parametrize("change", [{"paused": True}, {"replicas_owner": "kube-controller-manager"}])
def test_who_is_paused_or_scaled_by_somebody_else_is_left_alone(change: dict[str, object]) -> None:
    scaler = Scaler(replicas=2)
    scaler.wish = replace(scaler.wish, **change)  # type: ignore[arg-type]
    assert scaler.look(Demand(waiting=100, busy=True)) == 2


def test_the_demand_is_the_sum_of_all_routers_and_one_that_is_new_counts_from_its_second_page() -> None:
    now = {"a": Counts(waiting=1, running=2, requests=10), "b": Counts(waiting=3, running=0, requests=500)}
    assert demand_of(now, {"a": now["a"]}, {}) == Demand(waiting=4, running=2, busy=True)
    still = {"a": Counts(requests=10)}
    assert not demand_of(still, still, {}).busy
    assert demand_of({"a": Counts(requests=11)}, still, {}).busy
    assert not demand_of({"b": Counts(requests=11)}, still, {}).busy


def test_clients_wait_for_the_first_token_in_the_router_too() -> None:
    before = {"a": Counts(first_token={1.0: 5, 2.0: 0}, queued={1.0: 0, 4.0: 7})}
    now = {"a": Counts(first_token={1.0: 5, 2.0: 100}, queued={1.0: 0, 4.0: 107})}
    seconds = demand_of(now, before, before).first_token_s
    assert seconds == pytest.approx(1.95 + 3.85)


def test_a_percentile_of_a_few_values_is_none() -> None:
    assert percentile({1.0: 19}, 0.95) is None
    assert percentile({1.0: 20}, 0.95) == pytest.approx(0.95)
    assert percentile({1.0: 10, float("inf"): 90}, 0.95) == pytest.approx(1.0 + 85 / 90)
