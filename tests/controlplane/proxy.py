"""Stands between one client and the API server, and lets a test spoil the conversation: errors, lost answers, silence.

Plain HTTP towards the client, whose token is passed on. One thread serves; a test changes the faults from its own.
"""

import asyncio
import ssl
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from typing import Any, Final, Self

import aiohttp
from aiohttp import web

from tests.controlplane.cluster import ControlPlane
from tests.controlplane.credentials import write_kubeconfig

_HOP: Final = frozenset({"connection", "content-length", "host", "keep-alive", "transfer-encoding"})
_LARGEST: Final = 64 * 1024 * 1024


@dataclass(frozen=True)
class Fault:
    """An answer in the server's place; with ``done`` the server has carried out what was asked, and is not heard."""

    status: int
    done: bool = False


@dataclass
class Asked:
    """One request of the client, with what it sends. ``watch`` are the long ones."""

    method: str
    path: str
    watch: bool
    body: bytes = b""

    @property
    def writes(self) -> bool:
        """Whether it changes something."""
        return self.method != "GET"


Judge = Callable[[Asked], Fault | None]


def fair(_: Asked) -> Fault | None:
    """Let everything through."""
    return None


@dataclass
class ApiProxy:
    """Works from `__enter__` to `__exit__`. ``judge`` says which fault a request meets, ``seen`` which there were.

    ``lost`` has those that never reached the server.
    """

    plane: ControlPlane
    judge: Judge = fair
    seen: list[Asked] = field(default_factory=list)
    lost: list[Asked] = field(default_factory=list)
    url: str = ""
    _streams: set[asyncio.Event] = field(default_factory=set)

    def __enter__(self) -> Self:
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name="api-proxy", daemon=True)
        self._thread.start()
        self._run(self._open())
        return self

    def __exit__(self, *_: object) -> None:
        self._run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def kubeconfig(self, directory: Path) -> Path:
        """Return the administrator's kubeconfig with this address in it."""
        path = directory / "proxy.kubeconfig"
        write_kubeconfig(path, url=self.url, authority=self.plane.files.authority, user=self.plane.users.admin)
        return path

    def stall(self) -> int:
        """Say nothing more on the watches that are open now, and leave them open; how many there are."""
        return int(self._run(self._stall()))

    async def _stall(self) -> int:
        for flows in self._streams:
            flows.clear()
        return len(self._streams)

    async def _open(self) -> None:
        trusted = ssl.create_default_context(cafile=str(self.plane.files.authority))
        connector = aiohttp.TCPConnector(ssl=trusted, limit=0)
        timeout = aiohttp.ClientTimeout(total=None)
        self._session = aiohttp.ClientSession(connector=connector, auto_decompress=False, timeout=timeout)
        app = web.Application(client_max_size=_LARGEST)
        app.router.add_route("*", "/{tail:.*}", self._relay)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"

    async def _close(self) -> None:
        await self._runner.cleanup()
        await self._session.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await asyncio.sleep(0.1)  # transports close a turn of the loop after they were told to

    async def _relay(self, request: web.Request) -> web.StreamResponse:
        asked = Asked(request.method, request.path_qs, "watch" in request.query, await request.read())
        fault = self.judge(asked)
        self.seen.append(asked)
        if fault is not None and not fault.done:
            self.lost.append(asked)
            return _failure(fault.status)
        headers = {name: value for name, value in request.headers.items() if name.lower() not in _HOP}
        try:
            async with self._session.request(
                request.method, self.plane.url + request.path_qs, headers=headers, data=asked.body or None
            ) as answer:
                if asked.watch:
                    return await self._stream(request, answer)
                content = await answer.read()
        except (aiohttp.ClientError, OSError):
            return _failure(502)
        if fault is not None:
            return _failure(fault.status)
        kept = {name: value for name, value in answer.headers.items() if name.lower() not in _HOP}
        return web.Response(status=answer.status, body=content, headers=kept)

    async def _stream(self, request: web.Request, answer: aiohttp.ClientResponse) -> web.StreamResponse:
        kept = {name: value for name, value in answer.headers.items() if name.lower() not in _HOP}
        response = web.StreamResponse(status=answer.status, headers=kept)
        await response.prepare(request)
        flows = asyncio.Event()
        flows.set()
        self._streams.add(flows)
        try:
            async for chunk in answer.content.iter_any():
                await flows.wait()
                await response.write(chunk)
            await flows.wait()
        finally:
            self._streams.discard(flows)
        return response

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout=60)


def _failure(code: int) -> web.Response:
    reason = {429: "TooManyRequests", 500: "InternalError"}.get(code, "ServiceUnavailable")
    body = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": f"the test's proxy answers {code}",
        "reason": reason,
        "code": code,
    }
    return web.json_response(body, status=code, headers={"retry-after": "1"} if code == 429 else {})
