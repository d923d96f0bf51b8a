"""How many requests may go to a second group because the first is slow to bring a token: at most one in twenty.

Without a bound, slowness of the whole fleet would double its load. Nothing is earned by time, only by requests.
"""

from dataclasses import dataclass
from typing import Final

EARNED_PER_REQUEST: Final = 0.05
MOST_KEPT: Final = 10.0


@dataclass(frozen=True)
class HedgeBudget:
    """``kept`` second sends; a router begins with one."""

    kept: float = 1.0

    def admitted(self) -> "HedgeBudget":
        """The budget after a new request came in."""
        return HedgeBudget(min(self.kept + EARNED_PER_REQUEST, MOST_KEPT))

    def spent(self) -> "HedgeBudget | None":
        """The budget after one second send, or None when there is none to spend."""
        return None if self.kept < 1.0 else HedgeBudget(self.kept - 1.0)
