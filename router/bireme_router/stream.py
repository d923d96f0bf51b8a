"""The client reads a stream: the worker's events go out as they are.

The status line is held back until the first event, so that an early failure is an HTTP status and not an event.
"""

import asyncio
from collections.abc import Mapping
from typing import Final

from aiohttp import web
from aiohttp.http import StreamWriter

from bireme.names import Header
from bireme_router.errors import ClientLeft, RouterError
from bireme_router.headers import returned
from bireme_router.sse import event_of

_WRITE_BUFFER: Final = 8 * 1024
"""Bytes per client that wait in this process at most, before reading from the worker stops."""


class StreamSink:
    """See ``Sink``."""

    def __init__(self, request: web.Request, request_id: str) -> None:
        self._request = request
        self._request_id = request_id
        self._response: web.StreamResponse | None = None
        self._writer: StreamWriter | None = None
        self._transport = request.transport
        self.first_at: float | None = None
        """When the answer began, on the loop's clock."""
        self.sent = 0
        """Bytes of the body so far."""
        self._chunks: asyncio.Transport | None = None
        """Where further chunks go without a detour, once the head is out."""

    @property
    def congested(self) -> bool:
        """Whether the kernel takes no more from us now."""
        return self._transport is not None and self._transport.get_write_buffer_size() > 0

    @property
    def open(self) -> bool:
        """Whether the head is out, so that ``put`` may be used."""
        return self._chunks is not None

    def put(self, events: list[bytes]) -> None:
        """Send whole events now."""
        chunks = self._chunks
        if chunks is None or chunks.is_closing():
            raise ClientLeft
        data = events[0] if len(events) == 1 else b"".join(events)
        self.sent += len(data)
        chunks.write(b"%x\r\n%b\r\n" % (len(data), data))

    async def write(self, events: list[bytes], headers: Mapping[str, str]) -> None:
        """Send whole events."""
        if self._chunks is not None:
            self.put(events)
            return
        try:
            data = b"".join(events)
            self.sent += len(data)
            writer = self._writer or await self._start(headers)
            await writer.write(data, drain=False)
            if writer.chunked:  # its head has gone out with this write
                self._chunks = writer.transport
        except ConnectionError as error:
            raise ClientLeft from error

    async def drain(self) -> None:
        """Wait for the client."""
        try:
            if self._writer is not None:
                await self._writer.drain()
        except ConnectionError as error:
            raise ClientLeft from error

    async def finish(self) -> None:
        """End the body."""
        try:
            await self.response.write_eof()
        except ConnectionError as error:
            raise ClientLeft from error

    async def finish_with(self, body: bytes, headers: Mapping[str, str]) -> None:  # noqa: ARG002  (never comes here)
        """A stream is asked for only where the worker answers with one."""
        raise AssertionError("an object came for a stream")

    async def fail(self, error: RouterError) -> None:
        """An HTTP status if nothing was sent yet, else an error event and no end marker."""
        if self._response is None:
            self._response = error_response(error, self._request_id)
            return
        await self.write([event_of(error.body())], {})
        await self.finish()

    @property
    def response(self) -> web.StreamResponse:
        """The stream."""
        if self._response is None:
            self._response = web.StreamResponse(headers={str(Header.REQUEST_ID): self._request_id})
        return self._response

    async def _start(self, headers: Mapping[str, str]) -> StreamWriter:
        response = web.StreamResponse(headers=returned(headers) | {str(Header.REQUEST_ID): self._request_id})
        if self._transport is not None:
            self._transport.set_write_buffer_limits(high=_WRITE_BUFFER)
        self._response = response
        self.first_at = asyncio.get_running_loop().time()
        writer = await response.prepare(self._request)
        if not isinstance(writer, StreamWriter):
            raise ClientLeft
        self._writer = writer
        return writer


def error_response(error: RouterError, request_id: str) -> web.Response:
    """An error as an HTTP answer."""
    headers = {**error.headers(), Header.REQUEST_ID: request_id}
    return web.Response(status=error.status, body=error.body(), headers=headers)
