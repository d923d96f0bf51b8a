"""How many requests may be sent again, so that a sick fleet is not finished off by retries.

A token bucket: each admitted request earns a fifth of a retry, time earns a few, and unused ones are kept up to a
limit. An empty bucket delays a retry, it never fails a request. Continuing a broken stream is not charged: its
work was admitted once, and its number is bounded by the streams that were open.
"""

from dataclasses import dataclass, replace
from typing import Final

EARNED_PER_REQUEST: Final = 0.2
EARNED_PER_SECOND: Final = 50.0
MOST_KEPT: Final = 250.0


@dataclass(frozen=True)
class RetryBudget:
    """``kept`` retries at time ``at`` (seconds of any steady clock)."""

    kept: float = MOST_KEPT
    at: float = 0.0

    def admitted(self, now: float) -> "RetryBudget":
        """The budget after a new request came in."""
        grown = self._grown(now)
        return replace(grown, kept=min(grown.kept + EARNED_PER_REQUEST, MOST_KEPT))

    def spent(self, now: float) -> "RetryBudget | None":
        """The budget after one retry, or None when there is none to spend yet."""
        grown = self._grown(now)
        return None if grown.kept < 1.0 else replace(grown, kept=grown.kept - 1.0)

    def wait_s(self, now: float) -> float:
        """Seconds until a retry can be spent if nothing else happens."""
        return max(1.0 - self._grown(now).kept, 0.0) / EARNED_PER_SECOND

    def _grown(self, now: float) -> "RetryBudget":
        return RetryBudget(min(self.kept + max(now - self.at, 0.0) * EARNED_PER_SECOND, MOST_KEPT), now)
