"""One rank process without a rank, kept warm, so that a rank that died has a successor which only loads weights.

Importing torch is most of a rank's start: two to three seconds of a core, twice that beside a group that serves. The
spare does it ahead of time, waits for ``Become`` and costs memory only (docs/recovery.md has the numbers). It starts
once the stage serves, so that it never competes with a start or a recovery, and goes with its supervisor.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from bireme.wire.control import ControlMessage, control_codec
from bireme_worker.supervisor.child import TalkingChild, exit_text, start_talking
from bireme_worker.supervisor.watch import Watch

log = logging.getLogger(__name__)

_RETRY_S: Final = 30.0


class Spare:
    """Keeps one process of ``command`` in waiting; ``take`` hands it over."""

    def __init__(self, command: Sequence[str], watch: Watch) -> None:
        self._command = list(command)
        self._watch = watch
        self._waiting: TalkingChild[ControlMessage] | None = None
        self._starting: asyncio.Future[None] | None = None
        self._not_before = watch.now()

    def tick(self, *, wanted: bool) -> None:
        """Start one if it is wanted and none is there; one that died is tried again after a while."""
        if self._waiting is not None and not self._waiting.child.alive:
            self._mourn(self._waiting)
        idle = self._waiting is None and self._starting is None
        if wanted and idle and self._watch.now() >= self._not_before:
            self._starting = asyncio.ensure_future(self._start())

    def take(self) -> TalkingChild[ControlMessage] | None:
        """Return the process that waits, or None; a half-imported one is still ahead of a new one."""
        taken, self._waiting = self._waiting, None
        if taken is not None and not taken.child.alive:
            taken.channel.abort()
            return None
        return taken

    async def stop(self) -> None:
        """End it: it has nothing to finish."""
        if self._starting is not None:
            await self._starting
        taken = self.take()
        if taken is not None:
            taken.channel.abort()
            await taken.child.stop(0.0)

    async def _start(self) -> None:
        self._waiting = await start_talking(self._command, control_codec)
        self._starting = None
        log.info(f"a spare rank waits as process {self._waiting.child.pid}")

    def _mourn(self, dead: TalkingChild[ControlMessage]) -> None:
        self._waiting = None
        self._not_before = self._watch.now() + _RETRY_S
        dead.channel.abort()
        code = dead.child.exit_code
        how = exit_text(code, dead.child.last_line) if code is not None else "ended"
        log.warning(f"the spare rank {how}; the next one starts in {_RETRY_S:g} s")
