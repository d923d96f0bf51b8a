"""Puts the router together: one event loop, one client session, the routes, and an orderly end."""

import asyncio
import contextlib
import logging
import random
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

import aiohttp
from aiohttp import web

from bireme_router.accounts import Accounts
from bireme_router.discovery.cluster import Cluster
from bireme_router.discovery.keeper import Keeper, LeaderSource
from bireme_router.edge.certificate import Certificate
from bireme_router.edge.errors import UnusableFile
from bireme_router.edge.gate import Gate
from bireme_router.edge.history import History
from bireme_router.errors import BadRequest, ClientLeft, NoRoute, Unauthorized
from bireme_router.exchange import Dispatch
from bireme_router.groups import Groups
from bireme_router.job import CHAT, COMPLETIONS, EMBEDDINGS
from bireme_router.key_limits import KeyLimits
from bireme_router.metrics import RouterMetrics
from bireme_router.pages import Pages
from bireme_router.policies.retry_budget import RetryBudget
from bireme_router.proxy import Proxy
from bireme_router.replicas import PATH as REPLICA_USAGE
from bireme_router.replicas import Replicas
from bireme_router.room import WaitingRoom
from bireme_router.selection import Selection
from bireme_router.settings import Settings
from bireme_router.siblings import Siblings
from bireme_router.stream import error_response
from bireme_router.usage import Usage

log = logging.getLogger(__name__)

_KEEPALIVE_S: Final = 10.0
"""Idle connections to workers are dropped well before their servers do, so that none is closed as we use it."""
_READ_BUFFER: Final = 2 * 1024
_RECEIVE_BUFFER: Final = 6 * 1024
"""Bytes that the kernel may keep of one worker's stream, so that one read of a burst is no megabyte in this process."""
_LOOPBACK: Final = "127.0.0.1"
"""In a pod `kubectl port-forward` comes in there."""
_BACKLOG: Final = 1024

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Router:
    """A running router; made by ``running``."""

    def __init__(self, settings: Settings, session: aiohttp.ClientSession) -> None:
        clock = asyncio.get_running_loop().time
        groups = Groups(Accounts(), clock)
        selection = Selection(groups, clock, random.random)
        room = WaitingRoom(selection, settings.max_queued)
        self._usage = Usage(lambda key, requests, tokens: _used_elsewhere(room, limits, key, requests, tokens))
        limits = KeyLimits(settings.limits, clock, self._usage.note)
        metrics = RouterMetrics(groups, room)
        dispatch = Dispatch(settings, session, groups, selection, room, limits, metrics, RetryBudget(at=clock()))
        self._gate = Gate(settings)
        self._certificate = _certificate(settings)
        self.proxy = Proxy(dispatch, self._gate)
        history = History(groups)
        self._source = _source(settings)
        self._keeper = Keeper(settings.routes, groups, session, history.look, self._source)
        self._siblings = Siblings(settings.share, settings.index, settings.processes)
        self._pages = pages = Pages(groups, metrics, self.proxy, history, self._siblings)
        self._replicas = self._make_replicas(settings)
        self._runner = web.AppRunner(
            _application(self.proxy, pages, self._gate, self._replicas),
            handler_cancellation=True,  # without it a worker learns of a client's leave only with its next token
            access_log=None,
            shutdown_timeout=0.01,  # `drain` has waited already
        )
        self._settings = settings
        self._sites: list[web.TCPSite] = []

    async def listen(self) -> str:
        """Bind the port and return the address.

        Raises:
            OSError: it can't be bound.
        """
        await self._runner.setup()
        context = self._certificate.context if self._certificate else None
        host, port = self._settings.host, self._settings.port
        await self._siblings.listen(self._pages.metrics_part, self._pages.routes_part, self._usage)
        together = True if self._settings.share is not None else None
        for address in dict.fromkeys((host, *((_LOOPBACK,) if self._settings.pods else ()))):
            site = web.TCPSite(self._runner, address, port, backlog=_BACKLOG, ssl_context=context, reuse_port=together)
            try:
                await site.start()
            except OSError as error:
                if address == host:
                    raise
                log.warning("kubectl port-forward won't reach this router, another has its port: %s", error.strerror)
                continue
            self._sites.append(site)
        host, port = self._runner.addresses[0][:2]
        scheme = "https" if context else "http"
        return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"

    async def follow(self) -> None:
        """Keep what comes from outside up to date: routes, states, the certificate; until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._keeper.run())
            tasks.create_task(self._siblings.follow(self._usage))
            if self._source is not None and self._replicas is not None:
                tasks.create_task(self._replicas.follow(self._source.cluster, self._source.deployment))
            if self._certificate is not None:
                tasks.create_task(self._certificate.follow())

    async def drain(self) -> None:
        """Stop accepting, and return when the last open request is answered."""
        self.proxy.draining = True
        for site in self._sites:
            await site.stop()
        await self.proxy.wait_until_idle()

    async def close(self) -> None:
        """End everything that is still open."""
        await self._runner.cleanup()
        await self._siblings.close()
        self._gate.close()

    def _make_replicas(self, settings: Settings) -> Replicas | None:
        if self._source is None:
            return None
        scheme = "https" if self._certificate else "http"
        base = f"{scheme}://{{host}}:{settings.port}"
        return Replicas(self._usage, settings.tokens / "0", settings.host, base)


@contextlib.asynccontextmanager
async def running(settings: Settings) -> AsyncIterator[Router]:
    """A router with its client session, closed at the end."""
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEPALIVE_S, socket_factory=_small_socket)
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=settings.connect_timeout_s)
    async with aiohttp.ClientSession(
        connector=connector,
        timeout=timeout,
        auto_decompress=False,
        cookie_jar=aiohttp.DummyCookieJar(),
        read_bufsize=_READ_BUFFER,
        skip_auto_headers=("accept", "accept-encoding", "user-agent"),
    ) as session:
        router = Router(settings, session)
        try:
            yield router
        finally:
            await router.close()


def _small_socket(address: aiohttp.AddrInfoType) -> socket.socket:
    made = socket.socket(*address[:3])
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER)
    return made


def _certificate(settings: Settings) -> Certificate | None:
    if settings.tls_cert is None or settings.tls_key is None:
        return None
    try:
        return Certificate(settings.tls_cert, settings.tls_key)
    except OSError as error:
        raise UnusableFile(f"{settings.tls_cert} and {settings.tls_key} can't be loaded: {error}") from error


def _source(settings: Settings) -> LeaderSource | None:
    if settings.pods is None:
        return None
    namespace, _, name = settings.pods.partition("/")
    return LeaderSource(Cluster(namespace, settings.service_account), name, settings.tokens)


def _used_elsewhere(room: WaitingRoom, limits: KeyLimits, key: str, requests: int, tokens: float) -> None:
    room.settle(key, tokens)
    limits.used_elsewhere(key, requests, tokens)


def _application(proxy: Proxy, pages: Pages, gate: Gate, replicas: Replicas | None) -> web.Application:
    application = web.Application(middlewares=[_openai_errors], client_max_size=0)
    routes = application.router
    for path in (CHAT, COMPLETIONS, EMBEDDINGS):
        routes.add_post(path, proxy.handle, expect_handler=proxy.on_expect)
    for path, page in (
        ("/v1/models", pages.models),
        ("/v1/models/{name:.+}", pages.model),
        ("/admin/routes", pages.routes),
    ):
        routes.add_get(path, _guarded(gate, page))
    if replicas is not None:
        routes.add_get(REPLICA_USAGE, replicas.answer)
    routes.add_get("/", pages.page)
    routes.add_get("/livez", pages.livez)
    routes.add_get("/readyz", pages.readyz)
    routes.add_get("/metrics", pages.metrics)
    return application


def _guarded(gate: Gate, page: _Handler) -> _Handler:
    async def guarded(request: web.Request) -> web.StreamResponse:
        gate.let_in(request)
        return await page(request)

    return guarded


@web.middleware
async def _openai_errors(request: web.Request, handler: _Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except web.HTTPNotFound:
        return error_response(NoRoute(f"there is no {request.method} {request.path} here"), "")
    except web.HTTPMethodNotAllowed as error:
        allowed = ", ".join(sorted(error.allowed_methods))
        return error_response(BadRequest(f"{request.path} takes {allowed}, not {request.method}", 405), "")
    except Unauthorized as error:
        return error_response(error, "")
    except ClientLeft:
        return web.Response(status=499)  # nobody reads it
