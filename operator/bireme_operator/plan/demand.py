"""What the routers say of the load: how many requests wait and run, and how long clients wait for a first token."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

FEWEST: Final = 20
"""A percentile of fewer values says little."""


@dataclass(frozen=True)
class Demand:
    """All routers together. ``busy``: a request was there now or came since the last look.

    ``waiting`` requests have no place on a group yet, ``running`` ones have. ``first_token_s`` is the 95th percentile
    of the last minute, the wait in the router included; None where there were too few requests to tell.
    """

    waiting: int = 0
    running: int = 0
    busy: bool = False
    first_token_s: float | None = None


@dataclass(frozen=True)
class Counts:
    """What one router has counted since it began. The histograms have values by upper bound."""

    waiting: int = 0
    running: int = 0
    requests: int = 0
    first_token: Mapping[float, int] = field(default_factory=dict)
    queued: Mapping[float, int] = field(default_factory=dict)


def demand_of(now: Mapping[str, Counts], before: Mapping[str, Counts], long_ago: Mapping[str, Counts]) -> Demand:
    """Return the demand now, by runs of routers; ``before`` is the last look and ``long_ago`` that of a minute ago."""
    waiting, running = (sum(getattr(one, what) for one in now.values()) for what in ("waiting", "running"))
    came = any(one.requests > before[run].requests for run, one in now.items() if run in before)
    first = _since((one.first_token, long_ago[run].first_token) for run, one in now.items() if run in long_ago)
    queued = _since((one.queued, long_ago[run].queued) for run, one in now.items() if run in long_ago)
    first_s = percentile(first, 0.95)
    # The two are not counted together, so the slowest of one are taken for the slowest of the other.
    whole_s = None if first_s is None else first_s + (percentile(queued, 0.95) or 0.0)
    return Demand(waiting, running, bool(waiting or running or came), whole_s)


def percentile(counts: Mapping[float, int], share: float) -> float | None:
    """Return a percentile by a straight line inside its bucket, None of too few values."""
    total = sum(counts.values())
    if total < FEWEST:
        return None
    left, low = share * total, 0.0
    for high, count in sorted(counts.items()):
        if count and left <= count:
            return low + (min(high, 2 * low) - low if high == float("inf") else high - low) * left / count
        left, low = left - count, low if high == float("inf") else high
    return low


def _since(pairs: Iterable[tuple[Mapping[float, int], Mapping[float, int]]]) -> dict[float, int]:
    total: dict[float, int] = {}
    for now, before in pairs:
        for bound, count in now.items():
            total[bound] = total.get(bound, 0) + count - before.get(bound, 0)
    return total
