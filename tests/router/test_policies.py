"""The decisions by themselves."""

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bireme_router.policies.abandonment import why_abandon
from bireme_router.policies.avoidance import Setback, leave_alone_s
from bireme_router.policies.continuation import Delivered, GoOn, how_to_go_on, may_try_again
from bireme_router.policies.cost import Cost, expected_cost, remaining_cost, typical
from bireme_router.policies.eligible import Key, Standing, why_not, why_not_ready
from bireme_router.policies.retry_after import LONGEST_S, UNKNOWN_S, retry_after_s
from bireme_router.policies.retry_budget import EARNED_PER_SECOND, MOST_KEPT, RetryBudget
from bireme_router.policies.two_choices import two_choices
from bireme_router.policies.unprocessed import asks_elsewhere

UNIT = st.floats(0, 1, exclude_max=True)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=8), UNIT, UNIT)
def test_two_choices_never_takes_the_most_loaded_of_several(loads: list[int], a: float, b: float) -> None:
    chosen = two_choices(loads, (a, b))
    assert loads[chosen] < max(loads) or len(loads) == 1 or loads.count(max(loads)) > 1


def test_two_choices_keep_the_spread_small_where_one_choice_does_not() -> None:
    draw = random.Random(7).random
    loads = [0] * 8
    for _ in range(8000):
        loads[two_choices(loads, (draw(), draw()))] += 1
    assert max(loads) - min(loads) <= 12


def test_a_tie_goes_to_the_first_drawn_so_that_ties_spread() -> None:
    assert [two_choices([5, 5, 5], (draw, 0.0)) for draw in (0.0, 0.4, 0.9)] == [0, 1, 2]


def test_the_cost_counts_prompt_and_expected_output_within_the_clients_limit() -> None:
    assert expected_cost(400, 1, None, 100.0) == Cost(100, 150)
    assert expected_cost(400, 2, 10, 100.0) == Cost(100, 20)
    assert expected_cost(0, 1, 0, 100.0) == Cost(1, 1)
    assert remaining_cost(Cost(100, 150), 90, 50) == Cost(140, 100)


def test_the_typical_output_follows_what_requests_bring() -> None:
    mean = 128.0
    for _ in range(200):
        mean = typical(mean, 16)
    assert mean == pytest.approx(16, abs=0.1)


STANDING = Standing(Key("p", 1), "", "Serving", "None", "", 0, 0, "r1")


def test_a_group_is_used_only_when_leader_and_router_agree() -> None:
    assert why_not(STANDING, None) == ""
    assert why_not(STANDING, "r1") == ""
    assert "r1" in why_not(STANDING, "r2")
    assert "limit is 4" in why_not(replace(STANDING, capacity=4, in_flight=4), None)
    assert why_not_ready(replace(STANDING, unknown="silent")) == "silent"
    assert why_not_ready(replace(STANDING, state="Draining", reason="asked")) == "Draining: asked"
    assert why_not_ready(replace(STANDING, suspicion="failed")) == "failed"


def test_a_failed_target_is_left_alone_for_longer_each_time_but_never_for_long() -> None:
    times = [leave_alone_s(Setback.BROKEN, n) for n in range(1, 9)]
    assert times == sorted(times)
    assert times[-1] == 10.0
    assert leave_alone_s(Setback.REFUSED, 1, retry_after_s=3.0) == 3.0
    assert leave_alone_s(Setback.RESET, 1) == 0.0 < leave_alone_s(Setback.RESET, 2)


def test_the_retry_budget_bounds_a_storm_and_refills() -> None:
    budget, spent = RetryBudget(), 0
    while (after := budget.spent(0.0)) is not None:
        budget, spent = after, spent + 1
    assert spent == MOST_KEPT
    assert budget.wait_s(0.0) == pytest.approx(1 / EARNED_PER_SECOND)
    assert budget.spent(1.1 / EARNED_PER_SECOND) is not None
    for _ in range(5):
        budget = budget.admitted(0.0)
    assert budget.spent(0.0) is not None


@pytest.mark.parametrize(
    ("status", "unprocessed", "resuming", "others", "again"),
    [
        (503, True, False, False, True),
        (503, False, False, True, False),
        (429, True, False, True, True),
        (429, True, False, False, False),
        (429, True, True, False, True),
        (409, True, False, True, False),
        (409, True, True, False, True),
        (400, True, True, True, False),
        (500, False, True, True, False),
    ],
)
def test_only_a_proved_refusal_is_asked_elsewhere(
    status: int, unprocessed: bool, resuming: bool, others: bool, again: bool
) -> None:
    assert asks_elsewhere(status, unprocessed=unprocessed, resuming=resuming, others=others) is again


@pytest.mark.parametrize(
    ("delivered", "way"),
    [
        (Delivered(ids=False, journalled=False, text=False, unfinished_choices=1, usage_due=False), GoOn.REPEAT),
        (Delivered(ids=False, journalled=True, text=False, unfinished_choices=1, usage_due=False), GoOn.REPEAT),
        (Delivered(ids=True, journalled=True, text=False, unfinished_choices=1, usage_due=False), GoOn.RESUME),
        (Delivered(ids=True, journalled=True, text=False, unfinished_choices=0, usage_due=True), GoOn.RESUME),
        (Delivered(ids=True, journalled=True, text=False, unfinished_choices=0, usage_due=False), GoOn.COMPLETE),
        (Delivered(ids=False, journalled=False, text=True, unfinished_choices=1, usage_due=False), GoOn.GIVE_UP),
    ],
)
def test_how_a_broken_stream_goes_on_depends_on_what_the_client_holds(delivered: Delivered, way: GoOn) -> None:
    assert how_to_go_on(delivered) is way


def test_losses_without_progress_are_bounded() -> None:
    assert may_try_again(2, 3)
    assert not may_try_again(3, 3)


def test_a_stream_is_abandoned_only_when_two_witnesses_agree_or_its_epoch_is_over() -> None:
    assert why_abandon(superseded_for_s=0, unknown_for_s=60, quiet_for_s=1) == ""
    assert why_abandon(superseded_for_s=0, unknown_for_s=0, quiet_for_s=60) == ""
    assert "watch" in why_abandon(superseded_for_s=0, unknown_for_s=4, quiet_for_s=4)
    assert why_abandon(superseded_for_s=0.5, unknown_for_s=0, quiet_for_s=0) == ""
    assert "epoch" in why_abandon(superseded_for_s=1.5, unknown_for_s=0, quiet_for_s=0)


def test_retry_after_is_the_shortest_promise_in_whole_seconds() -> None:
    assert retry_after_s([0.0, 2.1, 9.0]) == 3
    assert retry_after_s([0.0]) == UNKNOWN_S
    assert retry_after_s([1e9]) == LONGEST_S
