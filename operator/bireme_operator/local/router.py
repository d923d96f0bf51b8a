"""Keeps the router running and its routes file true.

A router that ends is started again; one whose configuration is refused (exit 64, a taken port too) ends the whole run,
because nobody could reach the groups.
"""

import asyncio
import logging
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from signal import SIGKILL, SIGTERM
from typing import Any

from bireme.api.router import CrossRevision, Router
from bireme.child import Child
from bireme.names import Exit
from bireme.wire.routes import Routes, write_routes
from bireme_operator.local.rundir import RunDir, replace_file
from bireme_operator.local.termination import last_words
from bireme_operator.plan.observed import Phase

log = logging.getLogger(__name__)

_FIRST_WAIT_S = 0.1
_LONGEST_WAIT_S = 5.0


def router_command(rundir: RunDir, host: str, port: int, settings: Router) -> list[str]:
    """Return the command line of the router for a deployment."""
    limits = settings.limits
    options = {
        "routes": rundir.routes,
        "host": host,
        "port": port,
        "max-body-bytes": limits.max_body_bytes,
        "max-queued": limits.max_queued_requests,
        "retry-attempts": settings.retry.attempts,
        "queue-timeout": limits.queue_timeout_seconds,
        "connect-timeout": limits.connect_timeout_seconds,
        "first-token-timeout": limits.first_token_timeout_seconds,
        "idle-timeout": limits.idle_timeout_seconds,
        "total-timeout": limits.total_timeout_seconds,
    }
    flags = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    flags += ["--processes", str(settings.replicas)] if settings.replicas > 1 else []
    hedge_s = settings.hedge_after_milliseconds / 1000
    flags += ["--hedge-after", f"{hedge_s:g}"] if hedge_s else []
    flags += ["--cross-revision"] if settings.retry.cross_revision is CrossRevision.ALLOW else []
    return [sys.executable, "-m", "bireme_router.main", *flags]


def describe_router(router: "RouterKeeper") -> dict[str, Any]:
    """Return who it is, for status.json, as a pod is described."""
    return {
        "phase": router.phase.value,
        "pid": router.pid,
        "restarts": router.restarts,
        "message": router.message,
        "log": str(router.log),
    }


class RouterKeeper:
    """The router process. ``message`` has its last words, ``failed`` too when it can't work at all.

    ``say`` is called with every sentence about it that people should read.
    """

    def __init__(
        self, command: Sequence[str], routes: Path, log: Path, changed: Callable[[], None], say: Callable[[str], None]
    ) -> None:
        self._command = list(command)
        self._routes_path = routes
        self._log = log
        self._changed = changed
        self._say = say
        self._child: Child | None = None
        self._stopping = asyncio.Event()
        self._written: Routes | None = None
        self.restarts = 0
        self.message = ""
        self.failed: str | None = None

    @property
    def pid(self) -> int:
        """The router's process id, 0 while it does not run."""
        return self._child.pid if self._child else 0

    @property
    def log(self) -> Path:
        """Where it writes its log."""
        return self._log

    @property
    def phase(self) -> Phase:
        """Where it is in its life, in a pod's words."""
        if self._child is not None:
            return Phase.RUNNING
        if self._stopping.is_set() or self.failed:
            return Phase.EXITED
        return Phase.BACKING_OFF if self.message else Phase.PENDING

    def write(self, routes: Routes) -> None:
        """Tell the router its groups; a no-op when they have not changed. What a full disk refuses is tried again."""
        if routes == self._written:
            return
        try:
            replace_file(self._routes_path, write_routes(routes))
        except OSError as error:
            log.warning("the routes can't be written, it is tried again: %s", error)
        else:
            self._written = routes

    def stop(self) -> None:
        """Ask it, once, to accept nothing more and to let open streams finish (a second SIGTERM would cut them)."""
        if self._child is not None and not self._stopping.is_set():
            self._child.signal(SIGTERM)
        self._stopping.set()

    def kill(self) -> None:
        """End it now."""
        self._stopping.set()
        if self._child is not None:
            self._child.signal(SIGKILL)

    async def run(self) -> None:
        """Keep it running until it is stopped or refuses its configuration."""
        wait = _FIRST_WAIT_S
        while not self._stopping.is_set():
            started = asyncio.get_running_loop().time()
            self._child = Child(self._command, log=self._log)
            if self.restarts:
                self._say(f"router: runs again as process {self._child.pid}")
            self._changed()
            code = await self._child.wait()
            self._child, self.message = None, last_words(self._log.parent, self._log, code)
            if code == Exit.BAD_CONFIGURATION and not self._stopping.is_set():
                self.failed = self.message
            self._changed()
            if self._stopping.is_set() or self.failed:
                return
            log.warning("the router ended with %d and is started again: %s", code, self.message)
            self._say(f"router: {self.message}; it is started again")
            lived = asyncio.get_running_loop().time() - started
            wait = _FIRST_WAIT_S if lived > _LONGEST_WAIT_S else min(2 * wait, _LONGEST_WAIT_S)
            await self._pause(wait)
            self.restarts += 1

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        except TimeoutError:
            return
