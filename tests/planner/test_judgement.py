"""What a canary's numbers mean: too many failures speak at once, slowness at the end, and too little is never enough."""

import random
from bisect import bisect_left

import pytest

from bireme_operator.plan.desired import CanaryPolicy
from bireme_operator.plan.figures import Served, Times, together
from bireme_operator.plan.judgement import Outcome, judge

BOUNDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, float("inf"))
POLICY = CanaryPolicy(groups=1, analysis_s=600, requests=100, failed_share=0.01, slowdown=0.2)
OVER = 600.0


def times(mean_s: float, count: int) -> Times:
    """Values that all are ``mean_s``."""
    at = bisect_left(BOUNDS, mean_s)
    return Times(tuple((bound, count if n == at else 0) for n, bound in enumerate(BOUNDS)), mean_s * count)


def served(finished: int, failed: int = 0, first_s: float = 0.2, gap_s: float = 0.02) -> Served:
    return Served(finished, failed, times(first_s, finished), times(gap_s, 50 * finished))


CASES = {
    "as good": (served(1000), OVER, Outcome.PASSED),
    "as good, but early": (served(1000), OVER - 1, Outcome.HOLD),
    "too few requests": (served(99), OVER * 100, Outcome.HOLD),
    "no requests": (Served(), OVER * 100, Outcome.HOLD),
    "a few failures": (served(990, failed=10), OVER, Outcome.PASSED),
    "too many failures": (served(980, failed=20), 1.0, Outcome.FAILED),
    "more failures than the least number of requests may have": (served(0, failed=2), 1.0, Outcome.FAILED),
    "one failure alone": (served(0, failed=1), OVER, Outcome.HOLD),
    "a slow first token": (served(1000, first_s=0.4), OVER, Outcome.FAILED),
    "a slow first token, but early": (served(1000, first_s=0.4), OVER - 1, Outcome.HOLD),
    "a slow stream": (served(1000, gap_s=0.04), OVER, Outcome.FAILED),
    "a little slower": (served(1000, first_s=0.23, gap_s=0.023), OVER, Outcome.PASSED),
    "perhaps too slow": (served(100, first_s=0.245), OVER, Outcome.HOLD),
    "faster": (served(1000, first_s=0.1, gap_s=0.01), OVER, Outcome.PASSED),
}


@pytest.mark.parametrize("case", CASES)
def test_a_canary_is_judged_beside_the_others(case: str) -> None:
    canary, elapsed_s, outcome = CASES[case]
    assert judge(POLICY, canary, served(5000, failed=5), elapsed_s).outcome is outcome


def test_what_fails_as_often_elsewhere_is_no_fault_of_the_canary() -> None:
    assert judge(POLICY, served(950, failed=50), served(900, failed=100), OVER).outcome is Outcome.PASSED


def test_others_that_served_too_little_are_no_measure() -> None:
    assert judge(POLICY, served(1000), served(50), OVER).outcome is Outcome.HOLD


def test_a_canary_without_others_is_judged_by_its_failures_alone() -> None:
    assert judge(POLICY, served(1000, first_s=4.0), None, OVER).outcome is Outcome.PASSED
    assert judge(POLICY, served(0, failed=3), None, OVER).outcome is Outcome.FAILED


def test_a_model_that_streams_nothing_is_judged_by_its_failures_alone() -> None:
    assert judge(POLICY, Served(1000), Served(1000), OVER).outcome is Outcome.PASSED


def test_the_verdict_has_the_numbers_of_both() -> None:
    told = judge(POLICY, served(980, failed=20), served(4000), 1.0).message
    assert "1000 requests (others: 4000)" in told
    assert "2.0 % failed (others: 0.0 %)" in told
    assert "first token 200 ms (others: 200 ms), between tokens 20 ms (others: 20 ms)" in told


def sampled(draw: random.Random, mean_s: float, count: int) -> Times:
    """Times as they are: most are short, a few are many times as long."""
    values = [draw.lognormvariate(0, 1) * mean_s / 1.6487 for _ in range(count)]
    filled = [bisect_left(BOUNDS, value) for value in values]
    return Times(tuple((bound, filled.count(n)) for n, bound in enumerate(BOUNDS)), sum(values))


@pytest.mark.parametrize(("factor", "wrong"), [(1.0, Outcome.FAILED), (2.0, Outcome.PASSED)])
def test_noise_is_seldom_taken_for_a_difference_nor_a_difference_for_noise(factor: float, wrong: Outcome) -> None:
    draw, mistakes = random.Random(5), 0
    for _ in range(200):
        canary = Served(200, 0, sampled(draw, 0.3 * factor, 200))
        others = Served(800, 0, sampled(draw, 0.3, 800))
        mistakes += judge(POLICY, canary, others, OVER).outcome is wrong
    assert mistakes <= 4


def test_figures_of_several_routers_add_up_and_what_was_before_is_taken_off() -> None:
    both = together([served(10, failed=1), served(20, failed=2, first_s=0.4)])
    assert (both.requests, both.failed, both.first_token.count) == (33, 3, 30)
    assert both.first_token.mean_s == pytest.approx((10 * 0.2 + 20 * 0.4) / 30)
    later = both - served(10, failed=1)
    assert (later.requests, later.failed, later.first_token.count) == (22, 2, 20)
    assert later.first_token.mean_s == pytest.approx(0.4)


def test_the_error_of_a_mean_shrinks_with_what_is_known() -> None:
    few, many = times(0.2, 100), times(0.2, 10_000)
    assert few.error_s(100) == pytest.approx(10 * many.error_s(10_000))
    assert Times().error_s(0) == float("inf")
