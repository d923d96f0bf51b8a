"""Time during which this process was awake to look.

Every judgement about a peer ("no word for 2.5 s") is made in watched time: it grows with each tick, but never by more
than a tick should take. If this process was stopped, starved or busy itself, the gap is not charged to the peers, whose
words lie unread in the sockets meanwhile.
"""

from typing import Final

TICK_S: Final = 0.1
LONGEST_TICK_S: Final = 0.2


class WatchedClock:
    """A clock that discounts the lag of its own owner; ``now`` is the monotonic clock's reading."""

    def __init__(self, now: float) -> None:
        self._last = now
        self._watched = 0.0

    def tick(self, now: float) -> None:
        """Look at the real clock; called every ``TICK_S``."""
        self._watched += min(max(now - self._last, 0.0), LONGEST_TICK_S)
        self._last = now

    def time(self) -> float:
        """Watched seconds since the start."""
        return self._watched
