"""The admin port, 8001, of every stage (design, section 6.2): probes, metrics, state, and the operator's verbs.

`/livez` says that this process answers, `/readyz` that the group serves; neither costs a request of the engine. What
changes something needs the group token.
"""

import contextlib
import hmac
import math
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec
from aiohttp import web

from bireme.names import Admission, Header
from bireme.wire.state import AbortRequest, DrainRequest, LeaderRequest, ReloadRequest, StateDocument
from bireme_worker.supervisor.document import Board
from bireme_worker.supervisor.profile_routes import BadAsk, Profiler, TraceRoute, profile_route
from bireme_worker.supervisor.reload import MODES

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
T = TypeVar("T")

_INTERVAL_S = (0.05, 60.0)


class Refused(Exception):
    """This stage can't do that; the message says who can, or when."""


class Verbs(Profiler, Protocol):
    """What the supervisor does for the operator. Each may raise ``Refused``."""

    def drain(self, deadline_s: float) -> None:
        """Refuse new work, hand over the rest after ``deadline_s``."""

    def undrain(self) -> None:
        """Take work again."""

    def reload(self, asked: ReloadRequest) -> None:
        """Serve other weights."""

    def abort(self, request_id: str) -> None:
        """End one request."""

    def follow(self, address: str, incarnation: int) -> None:
        """The leader is there now."""

    def metrics(self) -> bytes:
        """Prometheus text."""


class Admin:
    """The routes. ``token`` is the group's, ``state_dir`` this pod's."""

    def __init__(self, board: Board, verbs: Verbs, token: bytes, state_dir: Path) -> None:
        self._board = board
        self._verbs = verbs
        self._secret = f"Bearer {token.hex()}".encode()
        self._traces = TraceRoute(verbs, state_dir, self._secret.decode())

    def application(self) -> web.Application:
        """The aiohttp application."""
        app = web.Application(client_max_size=64 * 1024)
        app.router.add_get("/livez", self._livez)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/state", self._proved(self._state))
        app.router.add_get("/watch", self._proved(self._watch))
        app.router.add_post("/drain", self._proved(self._drain))
        app.router.add_post("/undrain", self._proved(self._undrain))
        app.router.add_post("/abort", self._proved(self._abort))
        app.router.add_post("/leader", self._proved(self._leader))
        app.router.add_post("/reload", self._proved(self._reload))
        app.router.add_post("/adopt", self._proved(self._adopt))
        app.router.add_post("/profile", self._proved(profile_route(self._verbs, _body)))
        app.router.add_get("/profile/trace", self._proved(self._traces))
        return app

    def _proved(self, handler: Handler) -> Handler:
        async def checked(request: web.Request) -> web.StreamResponse:
            given = request.headers.get(Header.TOKEN, "").encode("utf-8", "surrogateescape")
            if not hmac.compare_digest(given, self._secret):
                return _error(Admission.UNAUTHORIZED, "send `Authorization: Bearer <group token>`")
            try:
                return await handler(request)
            except Refused as refusal:
                return _error(Admission.CONFLICT, str(refusal))
            except BadAsk as error:
                return _error(Admission.NEVER_FITS, str(error))

        return checked

    async def _livez(self, _: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _readyz(self, _: web.Request) -> web.Response:
        document = self._board.refresh()
        text = f"{document.state}/{document.reason} epoch {document.epoch} {document.message}\n"
        return web.Response(status=200 if document.ready else Admission.NOT_SERVING, text=text)

    async def _metrics(self, _: web.Request) -> web.Response:
        headers = {"content-type": "text/plain; version=0.0.4; charset=utf-8"}
        return web.Response(body=self._verbs.metrics(), headers=headers)

    async def _state(self, _: web.Request) -> web.Response:
        return _json(self._board.refresh())

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        interval_s = _interval(request.query.get("interval", "1"))
        response = web.StreamResponse(headers={"content-type": "application/jsonl", "cache-control": "no-store"})
        await response.prepare(request)
        with contextlib.suppress(ConnectionResetError):  # the watcher left
            while True:
                document = self._board.refresh()
                await response.write(msgspec.json.encode(document) + b"\n")
                await self._board.changed_since(document.seq, interval_s)
        return response

    async def _drain(self, request: web.Request) -> web.Response:
        deadline_s = (await _body(request, DrainRequest)).deadline_s
        if not (math.isfinite(deadline_s) and deadline_s >= 0):
            raise _bad(f"deadline_s is {deadline_s}: it must be a number of seconds from 0 up")
        self._verbs.drain(deadline_s)
        return _json(self._board.refresh())

    async def _undrain(self, _: web.Request) -> web.Response:
        self._verbs.undrain()
        return _json(self._board.refresh())

    async def _reload(self, request: web.Request) -> web.Response:
        asked = await _body(request, ReloadRequest)
        if not asked.source.startswith("/") or not asked.model_revision:
            raise _bad("source must be the absolute path of a checkpoint and model_revision its name")
        if asked.mode not in MODES:
            raise _bad(f"mode is {asked.mode!r}: write {' or '.join(MODES)}")
        if not (math.isfinite(asked.deadline_s) and asked.deadline_s >= 0):
            raise _bad(f"deadline_s is {asked.deadline_s}: it must be a number of seconds from 0 up")
        self._verbs.reload(asked)
        return _json(self._board.refresh())

    async def _abort(self, request: web.Request) -> web.Response:
        self._verbs.abort((await _body(request, AbortRequest)).request_id)
        return _json(self._board.refresh())

    async def _adopt(self, _: web.Request) -> web.Response:
        known = self._board.refresh()
        raise Refused(f"this pod is stage {known.stage} of group {known.group}, incarnation {known.incarnation}")

    async def _leader(self, request: web.Request) -> web.Response:
        wanted = await _body(request, LeaderRequest)
        if not wanted.address or wanted.incarnation < 1:
            raise _bad("address must name a host and incarnation must be at least 1")
        self._verbs.follow(wanted.address, wanted.incarnation)
        return _json(self._board.refresh())


async def start_admin(admin: Admin, host: str, port: int) -> web.AppRunner:
    """Serve until ``cleanup`` of the returned runner."""
    runner = web.AppRunner(admin.application(), handler_cancellation=True, shutdown_timeout=0.2, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, host, port).start()
    return runner


async def _body(request: web.Request, kind: type[T]) -> T:
    content = await request.read()
    try:
        return msgspec.json.decode(content or b"{}", type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise _bad(str(error)) from None


def _interval(text: str) -> float:
    least, most = _INTERVAL_S
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not least <= seconds <= most:
        raise _bad(f"interval is {text!r}: it must be seconds from {least:g} to {most:g}")
    return seconds


def _bad(message: str) -> web.HTTPBadRequest:
    return web.HTTPBadRequest(body=_encoded(message), content_type="application/json")


def _error(code: int, message: str) -> web.Response:
    return web.Response(status=code, body=_encoded(message), content_type="application/json")


def _encoded(message: str) -> bytes:
    body: dict[str, Any] = {"error": {"message": message}}
    return msgspec.json.encode(body)


def _json(document: StateDocument) -> web.Response:
    return web.Response(body=msgspec.json.encode(document), content_type="application/json")
