"""Whether a new request would only wait in vain, by the pace at which places were given away lately (Little's law).

A client that is told now can go elsewhere; one that is told after a minute has lost the minute. Nothing is refused
while the pace is not known, or while no group is at hand: then waiting is what the room is for.
"""

from dataclasses import dataclass
from typing import Final

ENOUGH: Final = 8
"""Places given away before the pace counts as known."""
WINDOW_S: Final = 10.0


@dataclass(frozen=True)
class Departures:
    """Places given to waiting requests, per second of a non-empty queue; older ones fade."""

    count: float = 0.0
    seconds: float = 0.0

    def after(self, count: int, seconds: float) -> "Departures":
        """So many more places in so many more seconds during which somebody waited."""
        room = max(WINDOW_S - seconds, 0.0)
        keep = min(room / self.seconds, 1.0) if self.seconds else 1.0
        return Departures(self.count * keep + count, self.seconds * keep + seconds)

    def wait_s(self, ahead: int) -> float | None:
        """How long ``ahead`` entries will take; None while that can't be told."""
        if self.count < ENOUGH or self.seconds <= 0.0:
            return None
        return ahead * self.seconds / self.count


def in_vain(wait_s: float | None, patience_s: float) -> bool:
    """Whether the request would outwait its patience."""
    return wait_s is not None and wait_s > patience_s
