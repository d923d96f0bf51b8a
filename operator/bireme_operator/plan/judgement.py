"""Whether a canary is as good as the groups beside it, by what the routers counted of both in the same time.

Failures speak at once: as soon as there are too many to pass. Slowness is judged when the time is over, because a new
group begins with an empty prefix cache. What the figures can't tell for sure is waited for, never passed.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Final

from bireme_operator.plan.desired import CanaryPolicy
from bireme_operator.plan.figures import Served, Times

SURE: Final = 2.0
"""Standard errors by which a canary must be over the limit to have failed."""


class Outcome(Enum):
    """What follows."""

    HOLD = "Hold"
    PASSED = "Passed"
    FAILED = "Failed"


@dataclass(frozen=True)
class Judgement:
    """The outcome, and the numbers in a sentence."""

    outcome: Outcome
    message: str


def judge(policy: CanaryPolicy, canary: Served, others: Served | None, elapsed_s: float) -> Judgement:
    """Compare the canary with the other groups; ``others`` is None where there are none."""
    facts = _facts(canary, others)
    beside = others or Served()
    allowed = f"{100 * policy.failed_share:g} % are allowed"
    too_many = policy.failed_share * max(canary.requests, policy.requests)
    if canary.failed > too_many and canary.failed_share > beside.failed_share:
        return Judgement(Outcome.FAILED, f"failed too many requests ({allowed}): {facts}")
    if canary.requests < policy.requests:
        return Judgement(Outcome.HOLD, f"holds until {policy.requests} requests are counted: {facts}")
    if elapsed_s < policy.analysis_s:
        return Judgement(Outcome.HOLD, f"holds, {elapsed_s:.0f} of {policy.analysis_s:g} s: {facts}")
    speeds = [] if others is None else [*_speeds(policy, canary, others)]
    for outcome, words in ((Outcome.FAILED, "is too slow"), (Outcome.HOLD, "holds until it is sure")):
        if found := [what for what, speed in speeds if speed is outcome]:
            limit = f"{100 * policy.slowdown:.0f} % slower is allowed"
            return Judgement(outcome, f"{words} ({' and '.join(found)}; {limit}): {facts}")
    return Judgement(Outcome.PASSED, facts)


def _speeds(policy: CanaryPolicy, canary: Served, others: Served) -> Iterator[tuple[str, Outcome]]:
    yield "first token", _speed(policy, canary.first_token, others.first_token)
    # The gaps of one request resemble one another, so as many say something new as there are requests.
    requests = (canary.first_token.count, others.first_token.count)
    yield "between tokens", _speed(policy, canary.gap, others.gap, requests)


def _speed(policy: CanaryPolicy, mine: Times, theirs: Times, most: tuple[int, int] | None = None) -> Outcome:
    if not mine.count and not theirs.count:
        return Outcome.PASSED  # nothing of the kind is served
    counts = (mine.count, theirs.count)
    independent = counts if most is None else (min(counts[0], most[0]), min(counts[1], most[1]))
    if min(independent) < policy.requests:
        return Outcome.HOLD
    allowed = 1 + policy.slowdown
    over_s = mine.mean_s - allowed * theirs.mean_s
    if over_s <= 0:
        return Outcome.PASSED
    error_s = (mine.error_s(independent[0]) ** 2 + (allowed * theirs.error_s(independent[1])) ** 2) ** 0.5
    return Outcome.FAILED if over_s > SURE * error_s else Outcome.HOLD


def _facts(canary: Served, others: Served | None) -> str:
    beside = others or Served()
    said = [
        _said(f"{canary.requests} requests", f"{beside.requests}", others),
        _said(f"{100 * canary.failed_share:.1f} % failed", f"{100 * beside.failed_share:.1f} %", others),
        _said(f"first token {_ms(canary.first_token)}", _ms(beside.first_token), others),
        _said(f"between tokens {_ms(canary.gap)}", _ms(beside.gap), others),
    ]
    return ", ".join(said)


def _said(mine: str, theirs: str, others: Served | None) -> str:
    return mine if others is None else f"{mine} (others: {theirs})"


def _ms(times: Times) -> str:
    return f"{1000 * times.mean_s:.3g} ms" if times.count else "-"
