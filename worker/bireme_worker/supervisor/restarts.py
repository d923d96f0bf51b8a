"""When a child that ended is started again, and when that is given up.

Exit codes 64 and 65 are final at once. Everything else is tried again, the first time without delay; a child that never
comes to anything ends the supervisor with 70, so that the restart budget of the group sees it.
"""

from bireme.names import Exit, Reason
from bireme_worker.supervisor.child import exit_text
from bireme_worker.supervisor.limits import backoff
from bireme_worker.supervisor.state_file import Termination
from bireme_worker.supervisor.watch import Watch

FINAL = {Exit.BAD_CONFIGURATION: Reason.BAD_CONFIGURATION, Exit.BAD_CHECKPOINT: Reason.BAD_CHECKPOINT}


class Restarts:
    """The starts of one child. ``total`` counts those after the first."""

    def __init__(self, what: str, watch: Watch) -> None:
        self.total = 0
        self._what = what
        self._watch = watch
        self._failures = 0

    def ended(self, code: int, last_line: str, proved: bool, blame: tuple[str, str] | None = None) -> float:
        """Take note of an end; return the seconds to wait before the next start.

        ``proved``: this process had done its work for a while, so its end is the first of a new row. ``blame``: reason
        and words of who ended it.
        """
        text = f"{self._what}: {blame[1]}" if blame else f"{self._what} {exit_text(code, last_line)}"
        for final, reason in FINAL.items():
            if code == final:
                self._watch.end(Termination(code, reason, text))
        self._failures = 1 if proved else self._failures + 1
        limits, starved = self._watch.limits, blame is not None and blame[0] == Reason.OUT_OF_MEMORY
        if self._failures >= (limits.starved if starved else limits.crashes):
            reason = Reason.OUT_OF_MEMORY if starved else Reason.CRASH_LOOP
            self._watch.end(Termination(Exit.INTERNAL, reason, f"{text}, {self._failures} times in a row"))
        self.total += 1
        return backoff(self._failures)
