"""A child process whose end is known at once, with the conversation that it inherited.

The kernel says when a process ends through its pidfd, so no thread, no SIGCHLD handler and no polling is needed. The
child gets one end of a socket pair and a parent-death signal (``bireme.process``); a SIGKILL of ours ends it too. What
it writes to stderr passes through here, because its last line is what people want to read when it is gone.
"""

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from signal import SIGKILL, Signals
from typing import Generic, TypeVar

from bireme.process import child_environment
from bireme.wire.frames import Channel, Codec

T = TypeVar("T")


_CHUNK = 65536
_TAIL = 4096
_living: set[int] = set()


class Child:
    """A running process; ``wait`` returns its exit code (negative: the signal)."""

    def __init__(
        self, command: Sequence[str], pass_fds: Sequence[int] = (), extra: Mapping[str, str] | None = None
    ) -> None:
        """``extra`` goes before our own environment."""
        loop = asyncio.get_running_loop()
        ours, theirs = os.pipe()
        # Its own process group: Ctrl-C in a terminal is for the supervisor, which drains before it ends its children.
        self._process = subprocess.Popen(
            command, env=child_environment(dict(extra or {})), pass_fds=pass_fds, stderr=theirs, process_group=0
        )
        os.close(theirs)
        os.set_blocking(ours, False)
        _living.add(self._process.pid)
        self._errors: int = ours
        self._tail: bytes = b""
        self._ended: asyncio.Future[int] = loop.create_future()
        self._pidfd = os.pidfd_open(self._process.pid)
        loop.add_reader(self._pidfd, self._reap)
        loop.add_reader(ours, self._relay)

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
        """The last line that it wrote to stderr, or nothing."""
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
            return await asyncio.wait_for(self.wait(), limit_s)
        self.signal(SIGKILL)
        return await self.wait()

    def _reap(self) -> None:
        code = self._process.poll()
        if code is None:
            return
        asyncio.get_running_loop().remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._relay()
        self._forget_errors()
        _living.discard(self._process.pid)
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


class TalkingChild(Generic[T]):
    """A child with a conversation over ``--control-fd``."""

    def __init__(self, child: Child, channel: Channel[T]) -> None:
        self.child = child
        self.channel = channel


async def start_talking(
    command: Sequence[str], codec: Codec[T], extra: Mapping[str, str] | None = None
) -> TalkingChild[T]:
    """Start ``command --control-fd N``."""
    ours, theirs = socket.socketpair()
    with theirs:
        child = Child([*command, "--control-fd", str(theirs.fileno())], (theirs.fileno(),), extra)
    reader, writer = await asyncio.open_unix_connection(sock=ours)
    return TalkingChild(child, Channel(reader, writer, codec))


def exit_text(code: int, last_line: str = "") -> str:
    """How a process ended, for people; its last line explains an exit, never a signal."""
    if code == 0:
        return "exited with 0"
    if code > 0:
        return f"exited with {code}" + (f": {last_line}" if last_line else "")
    try:
        return f"was ended by {Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"


def reap_orphans() -> None:
    """Take the exit of processes that we did not start: as PID 1 of a pod we inherit our children's children."""
    with contextlib.suppress(ChildProcessError):  # there is no child at all
        ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended is not None and ended.si_pid not in _living:
            os.waitpid(ended.si_pid, 0)
