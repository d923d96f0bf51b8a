"""How long one request leaves a target alone after it failed there.

A target is (pod, epoch): a group that re-formed is a new one. Untried targets always come first, so a failed one is
chosen again only when nothing else is left and its time has passed.
"""

from enum import Enum
from typing import Final


class Setback(Enum):
    """What went wrong with one attempt."""

    REFUSED = "refused"
    UNREACHED = "not reached"
    RESET = "reset before an answer"
    BROKEN = "broken off"
    SILENT = "silent for too long"
    HANDED_OVER = "handed over"
    OUTRUN = "another group was faster"


_FIRST_S: Final = {
    Setback.REFUSED: 0.25,
    Setback.UNREACHED: 0.5,
    Setback.RESET: 0.0,  # most often an idle connection closed as we used it: a fresh one will do
    Setback.BROKEN: 0.5,
    Setback.SILENT: 2.0,
    Setback.HANDED_OVER: 0.5,
    Setback.OUTRUN: 0.0,
}
_LONGEST_S: Final = 10.0


def leave_alone_s(setback: Setback, times: int, retry_after_s: float = 0.0) -> float:
    """Seconds to stay away after the ``times``-th setback there (from 1); doubles with each."""
    first = _FIRST_S[setback]
    if times > 1:
        first = max(first, 0.25)
    return min(max(first * 2.0 ** (times - 1), retry_after_s), _LONGEST_S)
