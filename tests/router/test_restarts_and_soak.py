"""T7, T12, T13, T14: groups that restart, are replaced or lie about themselves, and a router that bears it for long."""

import asyncio
import contextlib
import itertools
import json
import socket
from collections import deque
from pathlib import Path

from tests.router.conftest import Fleet, Launch
from tests.support.router_process import CHAT, LIMIT_S, QUESTION, Reply
from tests.support.stub_answers import Answer
from tests.support.stub_leader import Behaviour, Die, Fail, HandOver, Raw, Refuse, ResetAfterBody, Serve, StubLeader

MIB = 1024 * 1024


def resident(fleet: Fleet) -> int:
    """Bytes of memory that the router process holds."""
    assert fleet.router.process is not None
    return int(Path(f"/proc/{fleet.router.process.pid}/statm").read_text().split()[1]) * 4096


def is_whole(reply: Reply) -> bool:
    """A complete answer, stream or object."""
    if reply.headers["content-type"].startswith("text/event-stream"):
        return reply.status == 200 and reply.body.endswith(b"data: [DONE]\n\n")
    return reply.status == 200 and json.loads(reply.body)["choices"][0]["finish_reason"] in ("stop", "length")


def connected(port: int) -> socket.socket:
    """A client's socket whose kernel buffer is as small as it may be, so that what it does not read stays behind."""
    one = socket.socket()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    one.connect(("127.0.0.1", port))
    one.setblocking(False)
    return one


class Clients:
    """Many clients that ask again and again, half of them streaming, until they are told to stop."""

    def __init__(self, fleet: Fleet, number: int) -> None:
        self._fleet = fleet
        self._stop = False
        self.replies: list[Reply] = []
        self.tasks = [asyncio.create_task(self._ask(n)) for n in range(number)]

    async def _ask(self, number: int) -> None:
        while not self._stop:
            self.replies.append(await self._fleet.client.ask(stream=number % 2 == 0, seed=number))

    async def until(self, more: int) -> None:
        """Wait for so many more answers."""
        wanted = len(self.replies) + more
        async with asyncio.timeout(LIMIT_S):
            while len(self.replies) < wanted:
                await asyncio.sleep(0.005)

    async def stop(self) -> list[Reply]:
        self._stop = True
        await asyncio.gather(*self.tasks)
        return self.replies


async def test_t7_one_of_three_restarts_under_load_and_no_client_sees_it(launch: Launch) -> None:
    fleet = await launch(3)
    restarting = fleet.leaders[0]
    clients = Clients(fleet, 12)
    await clients.until(40)
    await restarting.stop_http()
    await clients.until(60)
    restarting.script = deque([Refuse(503, unprocessed=True)] * 6)
    await restarting.start_http_again()
    await clients.until(60)
    replies = await clients.stop()
    assert all(is_whole(reply) for reply in replies)
    resent = [one for leader in fleet.leaders for one in leader.received if one.headers["x-bireme-attempt"] != "1"]
    assert len(resent) <= 0.2 * len(replies) + 250, "the retry budget"
    pairs = [(one.headers["x-request-id"], leader.index) for leader in fleet.leaders for one in leader.received]
    assert len(set(pairs)) == len(pairs), "no request goes twice to one target"
    await fleet.client.until_ready(3)
    assert all("ejected" not in line for line in fleet.router.log.read_text().splitlines())
    await fleet.until_quiet()


async def test_t7_healthy_peers_stay_in_use_while_one_fails(launch: Launch) -> None:
    fleet = await launch(3)
    fleet.leaders[0].script = deque([Die(3)] * 30)
    before = [len(leader.received) for leader in fleet.leaders[1:]]
    clients = Clients(fleet, 6)
    await clients.until(60)
    assert all(is_whole(reply) for reply in await clients.stop())
    log = fleet.router.log.read_text()
    assert "group 1 (pod-1-1, epoch 1): a request failed" not in log
    assert "group 2 (pod-2-1, epoch 1): a request failed" not in log
    assert all(len(leader.received) > had for leader, had in zip(fleet.leaders[1:], before, strict=True))


async def test_t12_clients_that_do_not_read_cost_a_bounded_amount_of_memory(launch: Launch) -> None:
    fleet = await launch(1)
    event = b'data: {"id":"c","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"%s"}}]}\n\n'
    burst = event % (b"x" * 900) * 8000
    port = int(fleet.router.url.rsplit(":", 1)[1])
    body = json.dumps({**QUESTION, "stream": True}).encode()
    head = b"POST %s HTTP/1.1\r\nhost: h\r\ncontent-length: %d\r\n\r\n" % (CHAT.encode(), len(body))
    before = resident(fleet)
    async with contextlib.AsyncExitStack() as idlers:
        for n in range(40):
            fleet.leaders[0].script.append(Raw(burst))
            reader, writer = await asyncio.open_connection(sock=connected(port), limit=1024)
            idlers.callback(writer.close)
            writer.write(head + body)
            assert (await reader.readline()).startswith(b"HTTP/1.1 200"), f"stream {n} has begun"
        await fleet.client.until_metric('bireme_router_in_flight{group="0"}', 40)
        for _ in range(30):
            assert await fleet.client.status("/livez") == 200
        assert resident(fleet) - before < 12 * MIB, f"40 streams of {len(burst)} bytes each are not kept here"
    await fleet.client.until_metric('bireme_router_in_flight{group="0"}', 0)


MIXED: list[Behaviour] = [
    Serve(), Die(2), Serve(), Refuse(400), Refuse(503, unprocessed=True), HandOver(5), Serve(), Fail(4),
    ResetAfterBody(), Raw(b"data: {\n\n"),
]  # fmt: skip


async def test_t12_mixed_requests_with_errors_leave_neither_memory_nor_gauges_behind(launch: Launch) -> None:
    fleet = await launch(2)

    async def soak(requests: int) -> int:
        behaviours = itertools.cycle(MIXED)
        for _ in range(requests // 20):
            fleet.script.clear()
            fleet.script.extend(itertools.islice(behaviours, 20))
            await asyncio.gather(*(fleet.client.ask(stream=n % 2 == 0, seed=n) for n in range(20)))
        for leader in fleet.leaders:
            leader.received.clear()
        return resident(fleet)

    warm = await soak(300)
    assert await soak(600) - warm < 6 * MIB
    fleet.script.clear()
    await fleet.until_quiet()


async def test_t13_a_leader_with_the_same_name_at_another_address_is_another_target(launch: Launch) -> None:
    fleet = await launch(1)
    old = fleet.leaders[0]
    moved = await StubLeader(0, pod=old.pod).start()
    fleet.router.write_routes([moved])
    fleet.leaders.append(moved)
    async with asyncio.timeout(LIMIT_S):
        while json.loads(await fleet.client.page("/admin/routes"))["groups"][0]["http"] != moved.http:
            await asyncio.sleep(0.01)
    await fleet.client.until_ready(1)
    before = len(old.received)
    for _ in range(4):
        assert (await fleet.client.ask()).status == 200
    assert (len(old.received), len(moved.received)) == (before, 4)


async def test_t13_what_is_not_serving_by_its_own_word_gets_nothing(launch: Launch) -> None:
    fleet = await launch(2)
    for state in ("Starting", "Draining", "Reloading", "Recovering", "BackingOff", "Failed"):
        await fleet.leaders[0].change(state=state)
        await fleet.client.until_ready(1)
        before = len(fleet.leaders[0].received)
        assert (await fleet.client.ask()).status == 200
        assert len(fleet.leaders[0].received) == before
        await fleet.leaders[0].change(state="Serving")
        await fleet.client.until_ready(2)


async def test_t14_replacing_every_group_in_turn_fails_no_request_and_cuts_no_stream(launch: Launch) -> None:
    fleet = await launch(2)
    serving = list(fleet.leaders)
    clients = Clients(fleet, 8)
    for index in range(2):
        await clients.until(20)
        old = serving[index]
        await old.change(state="Draining")
        old.script = deque([Refuse(503, unprocessed=True)] * 50)
        fresh = await StubLeader(index, pod=f"pod-{index}-2").start()
        fresh.incarnation = 2
        serving[index] = fresh
        fleet.leaders.append(fresh)
        fleet.router.write_routes(serving)
        await fleet.client.until_ready(2)
        await clients.until(20)
        await old.stop()
    replies = await clients.stop()
    assert all(is_whole(reply) for reply in replies)
    assert all(leader.received for leader in serving)
    await fleet.client.until_metric("bireme_router_waiting", 0)


async def test_t14_at_the_drain_deadline_a_long_stream_is_handed_over_and_not_cut(launch: Launch) -> None:
    fleet = await launch(2)
    fleet.script.extend([HandOver(9), HandOver(7)])
    reply = await fleet.client.ask(stream=True, max_tokens=20)
    first = min(
        (one for leader in fleet.leaders for one in leader.received), key=lambda one: one.headers["x-bireme-attempt"]
    )
    assert reply.body == Answer(CHAT, first.json).plain()


async def test_t14_the_routers_own_shutdown_cuts_no_stream_and_loses_no_waiting_request(launch: Launch) -> None:
    fleet = await launch(1)
    fleet.leaders[0].script.append(Serve(pause_s=0.02))
    streaming = asyncio.create_task(fleet.client.ask(stream=True))
    await fleet.until_received()
    await fleet.leaders[0].change(limits=fleet.leaders[0].limits)
    process = fleet.router.process
    assert process is not None
    process.terminate()
    assert is_whole(await streaming)
    assert await process.wait() == 0
