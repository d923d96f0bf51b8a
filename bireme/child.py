"""A child process whose end is known at once and which ends with us.

The kernel says when a process ends through its pidfd, so no thread, no SIGCHLD handler and no polling is needed. The
child gets a session of its own, so that a terminal's Ctrl-C is for us, who decide in which order things stop, and a
parent-death signal (``bireme.process``). Its output goes to a log of its own, or its stderr through ours, because its
last line is what people want to read when it is gone.
"""

import asyncio
import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from signal import SIGKILL, Signals
from typing import Final

from bireme.process import child_environment

_CHUNK: Final = 65536
_TAIL: Final = 4096
living: Final[set[int]] = set()
"""Process ids of all children that have not been reaped."""


class Child:
    """A running process; ``wait`` returns its exit code (negative: the signal)."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str] | None = None,
        *,
        pass_fds: Sequence[int] = (),
        log: Path | None = None,
    ) -> None:
        """``environment`` is added to ours; ``log`` takes all output.

        Raises:
            OSError: it can't be started.
        """
        # Linux sends the parent-death signal when the *thread* that forked ends (see bireme.process).
        assert threading.current_thread() is threading.main_thread()
        loop = asyncio.get_running_loop()
        self._errors, self._tail = -1, b""
        theirs = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644) if log is not None else self._open_errors()
        try:
            self._process = subprocess.Popen(
                command,
                env=child_environment(dict(environment or {})),
                pass_fds=pass_fds,
                stdin=subprocess.DEVNULL,
                stdout=theirs if log is not None else None,
                stderr=theirs,
                start_new_session=True,
            )
        except OSError:
            if self._errors >= 0:
                os.close(self._errors)
            raise
        finally:
            os.close(theirs)
        living.add(self._process.pid)
        self._ended: asyncio.Future[int] = loop.create_future()
        self._pidfd = os.pidfd_open(self._process.pid)
        loop.add_reader(self._pidfd, self._reap)
        if self._errors >= 0:
            loop.add_reader(self._errors, self._relay)

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """The process has not ended."""
        return not self._ended.done()

    @property
    def exit_code(self) -> int | None:
        """The exit code (negative: the signal), None while it lives."""
        return self._ended.result() if self._ended.done() else None

    @property
    def last_line(self) -> str:
        """The last line that it wrote to stderr, or nothing; with a log it is to be looked for there."""
        lines = self._tail.decode(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "")

    async def wait(self) -> int:
        """Wait for the end and return the exit code."""
        return await asyncio.shield(self._ended)

    def signal(self, number: Signals) -> None:
        """Send a signal; does nothing after the end."""
        if self.alive:
            self._process.send_signal(number)

    async def stop(self, limit_s: float, number: Signals | None = None) -> int:
        """Ask by signal (or leave the asking to the caller), then SIGKILL after ``limit_s``."""
        if number is not None:
            self.signal(number)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                return await self.wait()
        self.signal(SIGKILL)
        return await self.wait()

    def _open_errors(self) -> int:
        self._errors, theirs = os.pipe()
        os.set_blocking(self._errors, False)
        return theirs

    def _reap(self) -> None:
        code = self._process.poll()
        if code is None:
            return
        asyncio.get_running_loop().remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._relay()
        self._forget_errors()
        living.discard(self._process.pid)
        self._ended.set_result(code)

    def _relay(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._errors >= 0:
                content = os.read(self._errors, _CHUNK)
                if not content:
                    self._forget_errors()
                    return
                sys.stderr.buffer.write(content)
                sys.stderr.buffer.flush()
                self._tail = (self._tail + content)[-_TAIL:]

    def _forget_errors(self) -> None:
        if self._errors >= 0:
            asyncio.get_running_loop().remove_reader(self._errors)
            os.close(self._errors)
            self._errors = -1
