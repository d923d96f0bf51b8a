"""What every living part of a supervisor shares: its clock, its limits and the way to end it."""

from collections.abc import Callable
from dataclasses import dataclass

from bireme_worker.supervisor.clock import WatchedClock
from bireme_worker.supervisor.limits import Limits
from bireme_worker.supervisor.state_file import Termination


@dataclass(frozen=True)
class Watch:
    """``end`` ends the supervisor with an exit code and a message; the first call wins."""

    clock: WatchedClock
    limits: Limits
    end: Callable[[Termination], None]

    def now(self) -> float:
        """Watched seconds since the start."""
        return self.clock.time()
