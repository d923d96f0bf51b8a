"""A child process with the conversation that it inherited: one end of a socket pair, as ``--control-fd``."""

import asyncio
import contextlib
import os
import socket
from collections.abc import Mapping, Sequence
from signal import Signals
from typing import Generic, TypeVar

from bireme.child import Child, living
from bireme.wire.frames import Channel, Codec

T = TypeVar("T")


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
        try:
            child = Child([*command, "--control-fd", str(theirs.fileno())], extra, pass_fds=(theirs.fileno(),))
        except OSError:
            ours.close()
            raise
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
        if ended is not None and ended.si_pid not in living:
            os.waitpid(ended.si_pid, 0)
