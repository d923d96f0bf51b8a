"""A conversation between a leader and a member: over TCP, or inside the leader's own process for stage 0.

Stage 0 is a member like every other, so there is one membership code path; only the transport differs.
"""

import asyncio
from typing import Protocol

from bireme.wire.control import ControlMessage
from bireme.wire.errors import ConnectionLost


class Link(Protocol):
    """What ``bireme.wire.frames.Channel`` offers, as far as it is needed here."""

    async def receive(self) -> ControlMessage:
        """Return the next message, or raise a WireError."""

    def send(self, message: ControlMessage) -> None:
        """Queue a message."""

    def close(self) -> None:
        """Close after what was queued."""

    def abort(self) -> None:
        """Close at once."""


_Queue = asyncio.Queue[ControlMessage | None]


class LocalLink:
    """One end of a conversation inside this process."""

    def __init__(self, incoming: _Queue, outgoing: _Queue) -> None:
        self._incoming = incoming
        self._outgoing = outgoing

    async def receive(self) -> ControlMessage:
        """Return the next message.

        Raises:
            ConnectionLost: one of the two ends was closed.
        """
        message = await self._incoming.get()
        if message is None:
            raise ConnectionLost("the conversation inside the leader was closed")
        return message

    def send(self, message: ControlMessage) -> None:
        """Queue a message for the other end."""
        self._outgoing.put_nowait(message)

    def close(self) -> None:
        """Wake both ends."""
        self._outgoing.put_nowait(None)
        self._incoming.put_nowait(None)

    abort = close


def local_pair() -> tuple[LocalLink, LocalLink]:
    """Both ends of a conversation inside this process."""
    there: _Queue = asyncio.Queue()
    back: _Queue = asyncio.Queue()
    return LocalLink(there, back), LocalLink(back, there)
