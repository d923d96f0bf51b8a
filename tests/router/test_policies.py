"""The decisions by themselves."""

from dataclasses import replace

import pytest

from bireme_router.policies.abandonment import why_abandon
from bireme_router.policies.avoidance import Setback, leave_alone_s
from bireme_router.policies.continuation import Delivered, GoOn, how_to_go_on, may_try_again
from bireme_router.policies.cost import Cost, expected_cost, remaining_cost, typical
from bireme_router.policies.eligible import Key, Standing, takes_requests, why_not, why_not_ready
from bireme_router.policies.retry_budget import EARNED_PER_SECOND, MOST_KEPT, RetryBudget
from bireme_router.policies.unprocessed import asks_elsewhere


def test_the_cost_counts_prompt_and_expected_output_within_the_clients_limit() -> None:
    assert expected_cost(400, 1, None, 100.0) == Cost(100, 150)
    assert expected_cost(400, 2, 10, 100.0) == Cost(100, 20, 2)
    assert expected_cost(0, 1, 0, 100.0) == Cost(1, 1)
    assert remaining_cost(Cost(100, 150), 90, 50) == Cost(140, 100)


def test_the_typical_output_follows_what_requests_bring() -> None:
    mean = 128.0
    for _ in range(200):
        mean = typical(mean, 16)
    assert mean == pytest.approx(16, abs=0.1)


STANDING = Standing(Key("p", 1), "", "Serving", "None", "", 0, 0, "r1")


def test_a_group_is_used_only_when_leader_and_router_agree() -> None:
    assert why_not(STANDING, None, 0) == ""
    assert why_not(STANDING, "r1", 0) == ""
    assert "r1" in why_not(STANDING, "r2", 0)
    assert "limit is 4" in why_not(replace(STANDING, in_flight=4), None, 4)
    assert why_not_ready(replace(STANDING, unknown="silent")) == "silent"
    assert why_not_ready(replace(STANDING, state="Draining", reason="asked")) == "Draining: asked"
    assert why_not_ready(replace(STANDING, suspicion="failed")) == "failed"


@pytest.mark.parametrize(
    "one",
    [
        STANDING,
        replace(STANDING, unknown="silent"),
        replace(STANDING, state="Draining"),
        replace(STANDING, suspicion="failed"),
    ],
)
def test_the_quick_answer_and_the_reason_agree(one: Standing) -> None:
    assert takes_requests(one.unknown, one.state, one.suspicion) == (not why_not_ready(one))


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
