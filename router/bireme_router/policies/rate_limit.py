"""Requests and tokens per minute of one API key: two token buckets, each full for one minute's worth.

Tokens are charged by the estimate when the request comes in and settled when it ends; a debt is paid off by time.
"""

from dataclasses import dataclass, replace
from typing import Final

_MINUTE: Final = 60.0


@dataclass(frozen=True)
class Rates:
    """What a key may use per minute; None: no limit."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None


@dataclass(frozen=True)
class Allowance:
    """What a key has used, at time ``at``: both drain at their rate."""

    requests: float = 0.0
    tokens: float = 0.0
    at: float = 0.0

    def wait_s(self, rates: Rates, tokens: int, now: float) -> float:
        """Seconds until a request of so many tokens is within the rates; 0: now.

        A request over a whole minute's tokens waits until the key has none to pay off.
        """
        used = self._drained(rates, now)
        return max(
            _until(used.requests, 1.0, rates.requests_per_minute), _until(used.tokens, tokens, rates.tokens_per_minute)
        )

    def used(self, rates: Rates, tokens: float, now: float, requests: int = 1) -> "Allowance":
        """The allowance after a request, or several; ``tokens`` may be negative when settling."""
        drained = self._drained(rates, now)
        return replace(drained, requests=drained.requests + requests, tokens=max(drained.tokens + tokens, 0.0))

    def settled(self, tokens: int) -> "Allowance":
        """The allowance after a request took so many tokens more (or fewer) than was charged."""
        return replace(self, tokens=max(self.tokens + tokens, 0.0))

    def _drained(self, rates: Rates, now: float) -> "Allowance":
        minutes = max(now - self.at, 0.0) / _MINUTE
        requests = max(self.requests - minutes * (rates.requests_per_minute or 0), 0.0)
        return Allowance(requests, max(self.tokens - minutes * (rates.tokens_per_minute or 0), 0.0), now)


def _until(used: float, wanted: float, per_minute: int | None) -> float:
    if per_minute is None:
        return 0.0
    over = used + min(wanted, per_minute) - per_minute
    return max(over, 0.0) / per_minute * _MINUTE
