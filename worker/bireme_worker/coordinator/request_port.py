"""Where HTTP processes connect: a Unix socket inside the pod, token handshake first, then ``wire.requests``."""

import asyncio
import logging
from pathlib import Path
from typing import Final, Protocol

from bireme.wire.errors import Garbled, WireError
from bireme.wire.frames import Channel
from bireme.wire.requests import Accepted, Allow, Cancel, Frame, Refused, RequestKinds, Serving, Submit, request_codec
from bireme_worker.coordinator.conversations import each_in_a_task

log = logging.getLogger(__name__)

HANDSHAKE_LIMIT_S: Final = 5.0
BACKLOG_LIMIT: Final = 64 * 1024 * 1024
"""Bytes: an HTTP process that lets this much pile up does not read any more."""
LONGEST_PATH: Final = 107
"""Bytes of a Unix socket's path that Linux takes."""


class UnusablePath(Exception):
    """The state directory's path is too long for a socket in it."""


class Client:
    """One HTTP process."""

    def __init__(self, channel: Channel[RequestKinds]) -> None:
        self._channel = channel

    def send(self, message: Accepted | Refused | Frame | Serving) -> None:
        """Queue a message. A process that does not read is cut off, or it would take our memory."""
        if self._channel.backlog > BACKLOG_LIMIT:
            log.error("an HTTP process has not read %d bytes: its connection is closed", self._channel.backlog)
            self._channel.abort()
        self._channel.send(message)


class RequestListener(Protocol):
    """Who hears what HTTP processes want. Each may raise ``WireError``: the connection is closed."""

    def client_came(self, client: Client) -> None:
        """An HTTP process connected."""

    def submit(self, client: Client, request: Submit) -> None:
        """It has a request."""

    def allow(self, client: Client, allow: Allow) -> None:
        """What a request may draw next."""

    def cancel(self, client: Client, key: int) -> None:
        """Its client left."""

    def client_left(self, client: Client) -> None:
        """It is gone, and everything it asked for is void."""


class RequestPort:
    """Accepts HTTP processes of this pod."""

    def __init__(self, token: bytes, listener: RequestListener) -> None:
        self._token = token
        self._listener = listener

    async def listen(self, path: Path) -> asyncio.Server:
        """Bind ``path``, in the place of a coordinator before us.

        Raises:
            UnusablePath: Linux takes no socket path of this length.
        """
        _make_way(path)
        return await asyncio.start_unix_server(each_in_a_task(self._converse), path)

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        channel: Channel[RequestKinds] = Channel(reader, writer, request_codec)
        client = Client(channel)
        try:
            async with asyncio.timeout(HANDSHAKE_LIMIT_S):
                await channel.accept(self._token)
            self._listener.client_came(client)
            while True:
                self._take(client, await channel.receive())
        except (WireError, TimeoutError) as error:
            log.info("HTTP process: %s", error)
        finally:
            channel.abort()
            self._listener.client_left(client)

    def _take(self, client: Client, message: RequestKinds) -> None:
        match message:
            case Submit():
                self._listener.submit(client, message)
            case Allow():
                self._listener.allow(client, message)
            case Cancel(key):
                self._listener.cancel(client, key)
            case _:
                raise Garbled(f"an HTTP process sent {type(message).__name__}")


def _make_way(path: Path) -> None:
    size = len(bytes(path))
    if size > LONGEST_PATH:
        raise UnusablePath(
            f"{path} has {size} bytes and a socket's path at most {LONGEST_PATH}: shorten the state directory's path "
            f"by {size - LONGEST_PATH}"
        )
    path.unlink(missing_ok=True)
