"""The watcher against a real HTTP server on a loopback address: what is believed, and what a broken stream means."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import aiohttp
import msgspec
import pytest
from aiohttp import web

from bireme.names import Port
from bireme.wire import WIRE_VERSION
from bireme.wire.state import StageState, StateDocument
from bireme_operator.local.addresses import Addresses
from bireme_operator.local.clock import steady_clock
from bireme_operator.local.watcher import Leader, Watcher
from bireme_operator.plan.observed import Phase, PodView
from tests.planner.world import document

POD = PodView("pod", 0, 0, 1, "rev1", "model1", Phase.RUNNING, "")


@dataclass
class Speaker:
    """A leader's admin port. ``say`` sends to every listener; ``hang_up`` ends their streams."""

    address: str
    tokens: list[str] = field(default_factory=list)
    queues: list["asyncio.Queue[bytes | None]"] = field(default_factory=list)

    async def watch(self, request: web.Request) -> web.StreamResponse:
        self.tokens.append(request.headers["authorization"])
        response = web.StreamResponse()
        await response.prepare(request)
        queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.queues.append(queue)
        while (line := await queue.get()) is not None:
            await response.write(line)
        return response

    async def say(self, **changes: object) -> None:
        await self.listened()
        self.send(msgspec.json.encode(document(POD, **changes)) + b"\n")

    def send(self, line: bytes | None) -> None:
        for queue in self.queues:
            queue.put_nowait(line)
        if line is None:
            self.queues.clear()

    async def listened(self) -> None:
        async with asyncio.timeout(20):
            while not self.queues:
                await asyncio.sleep(0.01)


@pytest.fixture
async def speaker() -> AsyncIterator[Speaker]:
    speaker = Speaker(Addresses([Port.ADMIN]).take())
    app = web.Application()
    app.router.add_get("/watch", speaker.watch)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, speaker.address, Port.ADMIN).start()
    yield speaker
    speaker.send(None)
    await runner.cleanup()


@dataclass
class Listener:
    watcher: Watcher
    news: asyncio.Event

    async def heard(self) -> None:
        async with asyncio.timeout(60):
            await self.news.wait()
        self.news.clear()

    async def until_connected(self) -> None:
        """That a leader is listened to again may be news more than once."""
        async with asyncio.timeout(60):
            while not (self.watcher.views and self.watcher.views[0].connected):
                await asyncio.sleep(0.01)

    def said(self) -> StateDocument:
        return self.watcher.views[0].document


@pytest.fixture
async def listener(speaker: Speaker) -> AsyncIterator[Listener]:
    news = asyncio.Event()
    async with aiohttp.ClientSession() as session:
        watcher = Watcher(session, steady_clock(), news.set)
        watcher.follow([Leader("pod", 0, "0", 1, speaker.address, "secret")])
        yield Listener(watcher, news)
        await watcher.close()


async def test_every_change_is_heard_with_the_group_s_token(speaker: Speaker, listener: Listener) -> None:
    await speaker.say(state="Starting")
    await listener.heard()
    assert listener.said().state == "Starting"
    await speaker.say(state="Serving")
    await listener.heard()
    assert listener.said().state == "Serving"
    assert set(speaker.tokens) == {"Bearer secret"}


async def test_a_stream_that_ends_is_news_at_once_and_is_dialled_again(speaker: Speaker, listener: Listener) -> None:
    await speaker.say()
    await listener.heard()
    speaker.send(None)
    await listener.heard()
    assert not listener.watcher.views[0].connected
    await speaker.say()
    await listener.until_connected()


@pytest.mark.parametrize("wrong", [{"incarnation": 2}, {"group": "another"}])
async def test_another_pod_at_the_same_address_is_not_believed(
    speaker: Speaker, listener: Listener, wrong: dict[str, object]
) -> None:
    await speaker.say(**wrong)
    async with asyncio.timeout(20):
        while len(speaker.tokens) < 2:
            await asyncio.sleep(0.01)
    assert listener.watcher.views == {}


async def test_a_leader_of_a_release_too_far_off_is_told_and_heard_as_soon_as_it_is_understood(
    speaker: Speaker, listener: Listener
) -> None:
    await speaker.say(v=WIRE_VERSION + 2)
    await listener.heard()
    assert listener.watcher.views == {}
    assert f"wire version {WIRE_VERSION + 2}" in listener.watcher.strangers["pod"]
    speaker.send(None)
    await speaker.say(v=WIRE_VERSION - 1)
    await listener.until_connected()
    assert not listener.watcher.strangers


async def test_a_line_that_is_no_document_ends_the_stream_not_the_watcher(speaker: Speaker, listener: Listener) -> None:
    await speaker.listened()
    speaker.send(b"nonsense\n")
    async with asyncio.timeout(20):
        while len(speaker.tokens) < 2:
            await asyncio.sleep(0.01)
    await speaker.say()
    await listener.until_connected()


async def test_a_busy_leader_does_not_wake_the_planner_at_every_step(speaker: Speaker, listener: Listener) -> None:
    await speaker.say(running=1)
    await listener.heard()
    before = listener.watcher.views[0].heard_at
    await speaker.say(running=2, step=7)
    async with asyncio.timeout(20):
        while listener.watcher.views[0].heard_at == before:
            await asyncio.sleep(0.01)
    assert not listener.news.is_set()
    await speaker.say(running=2, draining=True, state="Draining")
    await listener.heard()
    await speaker.say(running=1, draining=True, state="Draining")
    await listener.heard()
    assert listener.said().running == 1


async def test_what_says_nothing_new_is_the_same_word_and_a_stage_that_falls_silent_is_another(
    speaker: Speaker, listener: Listener
) -> None:
    def heard(last_heard_s: float) -> tuple[StageState, ...]:
        return (StageState(1, 1, "boot", last_heard_s, ()),)

    await speaker.say(running=1, stages=heard(0.1))
    await listener.heard()
    first = listener.watcher.views[0]
    await speaker.say(running=2, stages=heard(0.3))
    async with asyncio.timeout(20):
        while listener.said().running == 1:
            await asyncio.sleep(0.01)
    assert listener.watcher.views[0].word is first.word
    await speaker.say(running=2, stages=heard(2.5))
    await listener.heard()
    assert listener.watcher.views[0].word is not first.word
