"""The other processes of `--processes N`: they share one port, so what one tells of all must come from all.

Each process listens on a socket of its own in a private directory. `/metrics` and `/admin/routes` ask the others and
add up; a process that does not answer at once is left out, and `/admin/routes` says how many answered.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import aiohttp
from aiohttp import web

from bireme_router.usage import Usage

METRICS: Final = "/metrics"
ROUTES: Final = "/routes"
USAGE: Final = "/usage"
_PATIENCE_S: Final = 1.0
_URL: Final = "http://sibling"

Part = Callable[[], bytes]


class Siblings:
    """Process ``index`` of ``count``, and how it reaches the others; alone there is nobody to ask."""

    def __init__(self, share: Path | None, index: int, count: int) -> None:
        self._share = share
        self._index = index
        self._others = [other for other in range(count) if other != index] if share is not None else []
        self._sessions: list[aiohttp.ClientSession] = []
        self._runner: web.AppRunner | None = None

    async def listen(self, metrics: Part, routes: Part, usage: Usage) -> None:
        """Answer the others."""
        if self._share is None:
            return
        app = web.Application()
        app.router.add_get(METRICS, _page(metrics))
        app.router.add_get(ROUTES, _page(routes))
        app.router.add_get(USAGE, usage.answer)
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.01)
        await self._runner.setup()
        path = _socket(self._share, self._index)
        path.unlink(missing_ok=True)  # of a process that died
        await web.UnixSite(self._runner, str(path)).start()
        self._sessions = [
            aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(_socket(self._share, other)), limit=0))
            for other in self._others
        ]

    async def follow(self, usage: Usage) -> None:
        """Hear what keys use in the others, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for session in self._sessions:
                tasks.create_task(usage.follow(session, _URL + USAGE, {}))

    async def ask(self, path: str) -> list[bytes]:
        """What the others answer."""
        answers = await asyncio.gather(*(_ask(session, path) for session in self._sessions))
        return [answer for answer in answers if answer is not None]

    async def close(self) -> None:
        """Stop listening and asking."""
        for session in self._sessions:
            await session.close()
        if self._runner is not None:
            await self._runner.cleanup()


def _socket(share: Path, index: int) -> Path:
    return share / f"{index}.sock"


def _page(part: Part) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def page(_request: web.Request) -> web.StreamResponse:
        return web.Response(body=part())

    return page


async def _ask(session: aiohttp.ClientSession, path: str) -> bytes | None:
    with contextlib.suppress(aiohttp.ClientError, OSError, TimeoutError):
        async with asyncio.timeout(_PATIENCE_S), session.get(_URL + path) as response:
            if response.status == 200:
                return await response.read()
    return None
