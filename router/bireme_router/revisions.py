"""How each version (rendering of the pods, checkpoint) does, as clients feel it: what the operator judges a canary by.

Attempts are counted, not requests, so that a revision whose failures are healed elsewhere does not look well.
"""

from enum import StrEnum

from bireme_router.histogram import FIRST_TOKEN_S, GAP_S, Histogram
from bireme_router.outcome import Failed, Finished, Lost, Outcome
from bireme_router.policies.avoidance import Setback


class Verdict(StrEnum):
    """How one attempt counts. ``REFUSED`` and ``MOVED`` say nothing against a revision."""

    OK = "ok"
    ERROR = "error"
    REFUSED = "refused"
    MOVED = "moved"


class Revision:
    """The series of one version."""

    def __init__(self) -> None:
        self.first_token = Histogram(FIRST_TOKEN_S)
        self.gap = Histogram(GAP_S)
        self.attempts = dict.fromkeys(Verdict, 0)

    def ended(self, outcome: Outcome) -> None:
        """An attempt is over."""
        self.attempts[verdict(outcome)] += 1


def verdict(outcome: Outcome) -> Verdict:
    """How an outcome counts: a client's mistake and a full group are refusals, an engine's 5xx is an error."""
    if isinstance(outcome, Finished):
        return Verdict.OK
    if isinstance(outcome, Failed):
        return Verdict.ERROR
    if isinstance(outcome, Lost):
        return Verdict.MOVED if outcome.setback in (Setback.HANDED_OVER, Setback.OUTRUN) else Verdict.ERROR
    return Verdict.ERROR if outcome.status >= 500 and not outcome.unprocessed else Verdict.REFUSED
