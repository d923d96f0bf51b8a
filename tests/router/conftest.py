"""A router process before as many stub leaders as a test wants."""

import asyncio
import ssl
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.router_process import LIMIT_S, Client, RouterProcess
from tests.support.stub_leader import Behaviour, StubLeader


@dataclass
class Fleet:
    """What a test works with."""

    leaders: list[StubLeader]
    script: deque[Behaviour]
    """What the next requests meet, whichever leader they reach."""
    router: RouterProcess
    client: Client

    @property
    def received(self) -> int:
        """Requests that any leader got."""
        return sum(len(leader.received) for leader in self.leaders)

    async def until_received(self, requests: int = 1) -> None:
        """Wait until the leaders have got so many requests in all."""
        async with asyncio.timeout(LIMIT_S):
            while self.received < requests:
                await asyncio.sleep(0.005)

    async def until_quiet(self) -> None:
        """Wait until every gauge of the router is back at zero."""
        await self.client.until_metric("bireme_router_waiting", 0)
        for leader in self.leaders:
            await self.client.until_metric(f'bireme_router_in_flight{{group="{leader.index}"}}', 0)
            await self.client.until_metric(f'bireme_router_outstanding_tokens{{group="{leader.index}"}}', 0)


Launch = Callable[..., Awaitable[Fleet]]


@pytest.fixture
async def launch(tmp_path: Path) -> AsyncIterator[Launch]:
    """`await launch(2, "--idle-timeout", "1")`: so many groups, and flags of the router."""
    fleets: list[Fleet] = []

    async def start(groups: int = 1, *flags: str, ready: int | None = None, tls: ssl.SSLContext | None = None) -> Fleet:
        script: deque[Behaviour] = deque()
        leaders = [await StubLeader(index, script=script).start() for index in range(groups)]
        router = RouterProcess(tmp_path, flags)
        router.write_routes(leaders)
        await router.start()
        fleet = Fleet(leaders, script, router, Client(router.url, tls))
        fleets.append(fleet)
        await fleet.client.until_ready(groups if ready is None else ready)
        return fleet

    yield start
    for fleet in fleets:
        await fleet.client.session.close()
        await fleet.router.stop()
        for leader in fleet.leaders:
            await leader.stop()
