"""Puts the router together: one event loop, one client session, the routes, and an orderly end."""

import asyncio
import contextlib
import logging
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

import aiohttp
from aiohttp import web

from bireme_router.accounts import Accounts
from bireme_router.discovery.keeper import Keeper
from bireme_router.errors import BadRequest, ClientLeft, NoRoute
from bireme_router.exchange import Dispatch
from bireme_router.groups import Groups
from bireme_router.job import CHAT, COMPLETIONS
from bireme_router.metrics import RouterMetrics
from bireme_router.pages import Pages
from bireme_router.policies.retry_budget import RetryBudget
from bireme_router.proxy import Proxy
from bireme_router.room import WaitingRoom
from bireme_router.settings import Settings
from bireme_router.stream import error_response

log = logging.getLogger(__name__)

_KEEPALIVE_S: Final = 10.0
"""Idle connections to workers are dropped well before their servers do, so that none is closed as we use it."""
_READ_BUFFER: Final = 16 * 1024
_BACKLOG: Final = 1024

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Router:
    """A running router; made by ``running``."""

    def __init__(self, settings: Settings, session: aiohttp.ClientSession) -> None:
        clock = asyncio.get_running_loop().time
        groups = Groups(Accounts(), clock, random.random)
        room = WaitingRoom(groups, settings.max_queued)
        metrics = RouterMetrics(groups, room)
        dispatch = Dispatch(settings, session, groups, room, metrics, RetryBudget(at=clock()))
        self.proxy = Proxy(dispatch)
        self.keeper = Keeper(settings.routes, groups, session)
        self._runner = web.AppRunner(
            _application(self.proxy, Pages(groups, metrics, self.proxy)),
            handler_cancellation=True,  # without it a worker learns of a client's leave only with its next token
            access_log=None,
            shutdown_timeout=0.01,  # `drain` has waited already
        )
        self._settings = settings
        self._site: web.TCPSite | None = None

    async def listen(self) -> str:
        """Bind the port and return the address.

        Raises:
            OSError: it can't be bound.
        """
        await self._runner.setup()
        self._site = web.TCPSite(self._runner, self._settings.host, self._settings.port, backlog=_BACKLOG)
        await self._site.start()
        host, port = self._runner.addresses[0][:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    async def drain(self) -> None:
        """Stop accepting, and return when the last open request is answered."""
        self.proxy.draining = True
        if self._site is not None:
            await self._site.stop()
        await self.proxy.wait_until_idle()

    async def close(self) -> None:
        """End everything that is still open."""
        await self._runner.cleanup()


@contextlib.asynccontextmanager
async def running(settings: Settings) -> AsyncIterator[Router]:
    """A router with its client session, closed at the end."""
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEPALIVE_S)
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


def _application(proxy: Proxy, pages: Pages) -> web.Application:
    application = web.Application(middlewares=[_openai_errors], client_max_size=0)
    routes = application.router
    for path in (CHAT, COMPLETIONS):
        routes.add_post(path, proxy.handle, expect_handler=proxy.on_expect)
    routes.add_get("/v1/models", pages.models)
    routes.add_get("/v1/models/{name:.+}", pages.model)
    routes.add_get("/livez", pages.livez)
    routes.add_get("/readyz", pages.readyz)
    routes.add_get("/metrics", pages.metrics)
    routes.add_get("/debug/groups", pages.groups)
    return application


@web.middleware
async def _openai_errors(request: web.Request, handler: _Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except web.HTTPNotFound:
        return error_response(NoRoute(f"there is no {request.method} {request.path} here"), "")
    except web.HTTPMethodNotAllowed as error:
        allowed = ", ".join(sorted(error.allowed_methods))
        return error_response(BadRequest(f"{request.path} takes {allowed}, not {request.method}", 405), "")
    except ClientLeft:
        return web.Response(status=499)  # nobody reads it
