"""T1: a client that leaves frees the group at once, in the queue, in prefill and in mid-stream; no gauge drifts.

`BIREME_SOAK_REPEAT=20` makes a thousand of each, and judges the time that it takes (a quarter of a second), which a
test on a busy machine must not.
"""

import asyncio
import os
import time

import aiohttp
import pytest

from tests.router.conftest import Fleet, Launch
from tests.support.router_process import CHAT, LIMIT_S, QUESTION, Client
from tests.support.stub_leader import Behaviour, Silent, Trickle

DISCONNECTS = "bireme_router_client_disconnects_total"
REPEAT = int(os.environ.get("BIREME_SOAK_REPEAT", "1"))
ROUNDS = 50 * REPEAT
MOST_S = 0.25 if REPEAT > 1 else float("inf")


async def until_waiting(client: Client, waiting: int) -> None:
    await client.until_metric("bireme_router_waiting", waiting)


async def leave(fleet: Fleet, session: aiohttp.ClientSession, *, after_bytes: int) -> None:
    """Ask, wait for the leader to have it (and for some bytes), close the connection."""
    before = fleet.received
    response = asyncio.create_task(
        session.post(fleet.router.url + CHAT, json={**QUESTION, "stream": True}).__aenter__()
    )
    while fleet.received == before:
        await asyncio.sleep(0)
    if after_bytes:
        await (await response).content.readexactly(after_bytes)
        (await response).close()
    else:
        response.cancel()


@pytest.mark.parametrize(
    ("behaviour", "after_bytes"),
    [(Silent(headers=False), 0), (Silent(0), 0), (Silent(7), 10), (Trickle(7, 0.02), 10)],
)
async def test_t1_the_leader_sees_a_client_leave_in_prefill_and_in_mid_stream(
    launch: Launch, behaviour: Behaviour, after_bytes: int
) -> None:
    fleet = await launch(1)
    leader, slowest = fleet.leaders[0], 0.0
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as session:
        for _ in range(ROUNDS):
            leader.script.append(behaviour)
            await leave(fleet, session, after_bytes=after_bytes)
            left_at = time.monotonic()
            async with asyncio.timeout(LIMIT_S):
                await leader.left.get()  # while it is silent, nothing but the close can tell it
            slowest = max(slowest, time.monotonic() - left_at)
    await fleet.client.until_metric(DISCONNECTS, ROUNDS)
    await fleet.until_quiet()
    assert leader.open == 0
    assert slowest < MOST_S


async def test_t1_a_client_that_leaves_the_queue_leaves_no_trace(launch: Launch) -> None:
    fleet = await launch(1)
    await fleet.leaders[0].change(state="Recovering")
    await fleet.client.until_ready(0)
    for _ in range(10 * REPEAT):
        crowd = [Client(fleet.router.url) for _ in range(5)]
        asking = [asyncio.create_task(impatient.ask()) for impatient in crowd]
        await until_waiting(fleet.client, 5)
        for task, impatient in zip(asking, crowd, strict=True):
            task.cancel()
            await impatient.session.close()
        left_at = time.monotonic()
        await until_waiting(fleet.client, 0)
        assert time.monotonic() - left_at < MOST_S
    await fleet.leaders[0].change(state="Serving")
    assert (await fleet.client.ask()).status == 200
    assert fleet.received == 1


async def test_two_hundred_streams_at_once_are_all_whole_and_leave_nothing_behind(launch: Launch) -> None:
    fleet = await launch(3)
    replies = await asyncio.gather(*(fleet.client.ask(stream=True, seed=n, max_tokens=20) for n in range(200)))
    assert all(reply.body.endswith(b"data: [DONE]\n\n") for reply in replies)
    assert len({reply.body.split(b'"')[3] for reply in replies}) == 200
    counts = [len(leader.received) for leader in fleet.leaders]
    # How evenly depends on how fast each seems; a measure of choices alone is in test_scheduling_policies.
    assert min(counts) > 10, f"two choices spread the load: {counts}"
    await fleet.until_quiet()
    await fleet.client.until_metric('bireme_router_requests_total{code="200"}', 200)
