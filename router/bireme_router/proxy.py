"""The OpenAI routes: reads a request within its limits, answers it through an exchange, counts how it ended."""

import asyncio
from typing import TYPE_CHECKING, Final

from aiohttp import web

from bireme.names import Admission, Header
from bireme_router.caller import caller_of
from bireme_router.edge.gate import CLIENT_LEFT, Gate, Visit
from bireme_router.edge.tracing import describe, end_request, request_span
from bireme_router.errors import BadRequest, ClientLeft, NotTaken, RouterError, Unauthorized
from bireme_router.exchange import Dispatch, Exchange
from bireme_router.headers import forwarded
from bireme_router.job import Job, make_job, read_fields, request_id_of, time_limit
from bireme_router.stream import StreamSink, error_response
from bireme_router.unary import UnarySink

if TYPE_CHECKING:
    from opentelemetry.trace import Span

_REFUSED_UNREAD: Final = frozenset((Admission.BODY_TOO_LARGE, Admission.UNAUTHORIZED))
"""After these the rest of the body is not read: the connection is closed."""


class Proxy:
    """Handlers of the routes that go to a group."""

    def __init__(self, dispatch: Dispatch, gate: Gate) -> None:
        self._dispatch = dispatch
        self._gate = gate
        self._open = 0
        self._nobody_open = asyncio.Event()
        self._nobody_open.set()
        self.draining = False
        """Set at the first SIGTERM: open requests finish, new ones are refused."""

    @property
    def open(self) -> int:
        """Requests that are being answered now."""
        return self._open

    async def wait_until_idle(self) -> None:
        """Return when no request is open."""
        await self._nobody_open.wait()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer one request, whatever happens."""
        self._open += 1
        self._nobody_open.clear()
        visit, span = self._gate.begin(request), request_span(request.headers, request.path)
        code = CLIENT_LEFT
        try:
            response, code = await self._answer(request, visit, span)
        except (asyncio.CancelledError, ClientLeft):
            self._dispatch.metrics.disconnects.inc()
            raise
        finally:
            self._gate.end(visit, code)
            end_request(span, code)
            self._open -= 1
            if not self._open:
                self._nobody_open.set()
        self._dispatch.metrics.answered(code)
        if self.draining:
            response.force_close()
        return response

    async def on_expect(self, request: web.Request) -> None:
        """Let a client that asks first send its body, unless ``handle`` will refuse it unread."""
        try:
            self._gate.let_in(request)
        except Unauthorized:
            return
        fits = (request.content_length or 0) <= self._dispatch.settings.max_body_bytes
        if fits and request.transport is not None:
            request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    async def _answer(
        self, request: web.Request, visit: Visit | None, span: "Span | None"
    ) -> tuple[web.StreamResponse, int]:
        request_id = request_id_of(request.headers.get(Header.REQUEST_ID))
        if visit is not None:
            visit.request_id = request_id
        try:
            key = self._gate.let_in(request)
            job = await self._read(request, request_id, key)
        except RouterError as error:
            if visit is not None:
                visit.error = error.message
            response = error_response(error, request_id)
            if error.status in _REFUSED_UNREAD:
                response.force_close()
            return response, error.status
        describe(span, job)
        sink = StreamSink(request, request_id) if job.wants_stream else UnarySink(request_id)
        if visit is not None:
            visit.asks(key, job, sink)
        try:
            await Exchange(self._dispatch, job, sink, span).run()
        except RouterError as error:
            if visit is not None:
                visit.error = error.message
            await sink.fail(error)
            return sink.response, error.status
        return sink.response, 200

    async def _read(self, request: web.Request, request_id: str, key: str) -> Job:
        if self.draining:
            raise NotTaken(Admission.NOT_SERVING, "this router is shutting down: ask again, another one answers", 1)
        now = asyncio.get_running_loop().time()
        limit_s = time_limit(request.headers.get(Header.TIMEOUT), self._dispatch.settings.total_timeout_s)
        body = await read_body(request, self._dispatch.settings.max_body_bytes)
        return make_job(
            request.path,
            read_fields(body, self._dispatch.groups.models),
            body_bytes=len(body),
            request_id=request_id,
            headers=forwarded(request.headers),
            caller=caller_of(request.headers, key),
            now=now,
            limit_s=limit_s,
        )


async def read_body(request: web.Request, limit: int) -> bytes:
    """The whole body.

    Raises:
        BadRequest: it is larger than ``limit`` (known before reading when the client says its length), or its
            coding is broken.
    """
    if (request.content_length or 0) > limit:
        raise too_large(f"{request.content_length} bytes", limit)
    parts: list[bytes] = []
    size = 0
    try:
        async for part in request.content.iter_any():
            size += len(part)
            if size > limit:
                raise too_large("larger", limit)
            parts.append(part)
    except web.RequestPayloadError as error:
        raise BadRequest(f"the body can't be read: {error}") from None
    return b"".join(parts)


def too_large(size: str, limit: int) -> BadRequest:
    """The refusal of a body."""
    return BadRequest(f"the body is {size}, the limit is {limit} bytes", Admission.BODY_TOO_LARGE)
