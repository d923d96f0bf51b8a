"""The real router as a process, with a routes file that the test writes, and a client that keeps every byte."""

import asyncio
import contextlib
import re
import signal
import ssl
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

import aiohttp

from bireme.process import child_environment
from bireme.wire.routes import Route, Routes, write_routes
from tests.support.stub_leader import TOKEN, StubLeader

LIMIT_S = 60.0
"""For anything to come to pass, on a machine that has much else to do."""
CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
QUESTION: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "Where to?"}], "seed": 11}


@dataclass
class RouterProcess:
    """`python -m bireme_router.main` on a free port; ``log`` is its stderr."""

    directory: Path
    flags: Sequence[str] = ()
    url: str = ""
    log: Path = field(init=False)
    process: asyncio.subprocess.Process | None = None
    environment: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.log = self.directory / "router.log"
        (self.directory / "token").write_text(TOKEN)

    def write_routes(
        self,
        leaders: Sequence[StubLeader],
        models: tuple[str, ...] = ("m", "alias"),
        weights: dict[str, int] | None = None,
        zones: Sequence[str] = (),
    ) -> None:
        token = str(self.directory / "token")
        routes = tuple(
            Route(leader.group, leader.index, leader.pod, leader.incarnation, leader.http, leader.admin, token, zone)
            for leader, zone in zip_longest(leaders, zones, fillvalue="")
            if isinstance(leader, StubLeader)
        )
        fresh = self.directory / "routes.json.new"
        fresh.write_bytes(write_routes(Routes(1, models, routes, weights or {})))
        fresh.rename(self.directory / "routes.json")

    async def start(self) -> None:
        command = [sys.executable, "-m", "bireme_router.main", "--routes", str(self.directory / "routes.json")]
        with self.log.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                *command, "--port", "0", *self.flags,
                stdout=asyncio.subprocess.PIPE, stderr=log, env=child_environment(self.environment),
            )  # fmt: skip
        assert self.process.stdout is not None
        line = (await self.process.stdout.readline()).decode()
        found = re.search(r"https?://\S+", line)
        assert found, f"the router said {line!r} and {self.log.read_text()!r}"
        self.url = found.group()

    async def stop(self) -> int:
        """End it the hard way if need be, and return its exit code.

        It is asked until it has ended: to one that has not looked yet, two signals are one.
        """
        assert self.process is not None
        while self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(signal.SIGTERM)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.3):
                    await self.process.wait()
        return self.process.returncode


class Client:
    """Asks the router and looks at it."""

    def __init__(self, url: str, tls: ssl.SSLContext | None = None) -> None:
        self.url = url
        self.session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=tls or True))

    async def ask(self, path: str = CHAT, headers: dict[str, str] | None = None, **body: Any) -> "Reply":
        question = {**QUESTION, **({} if path == CHAT else {"prompt": "Where to?"}), **body}
        async with self.session.post(self.url + path, json=question, headers=headers) as response:
            return Reply(response.status, {k.lower(): v for k, v in response.headers.items()}, await response.read())

    async def page(self, path: str) -> str:
        async with self.session.get(self.url + path) as response:
            return await response.text()

    async def status(self, path: str) -> int:
        async with self.session.get(self.url + path) as response:
            return response.status

    async def metric(self, series: str) -> float:
        found = re.search(rf"^{re.escape(series)} (\S+)$", await self.page("/metrics"), re.MULTILINE)
        assert found, f"no series {series}"
        return float(found.group(1))

    async def until_ready(self, groups: int) -> None:
        await self.until_page("/readyz", f"{groups} of ")

    async def until_page(self, path: str, start: str) -> None:
        async with asyncio.timeout(LIMIT_S):
            while not (await self.page(path)).startswith(start):
                await asyncio.sleep(0.01)

    async def until_metric(self, series: str, value: float) -> None:
        """A client has its answer before the router has counted it."""
        await self.until_metric_is(series, lambda said: said == value)

    async def until_metric_is(self, series: str, wanted: Callable[[float], bool]) -> None:
        async with asyncio.timeout(LIMIT_S):
            while not wanted(await self.metric(series)):
                await asyncio.sleep(0.01)


@dataclass
class Reply:
    """One answer, whole."""

    status: int
    headers: dict[str, str]
    body: bytes
