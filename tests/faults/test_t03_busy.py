"""T3: a busy group is not a dead one: long prefills behind one another end no epoch and never make it unready."""

import asyncio

import aiohttp
import pytest

from tests.faults.bench import Bench
from tests.faults.tiny import MODEL

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]

PROMPT_IDS = 1900
REQUESTS = 12


async def test_a_queue_of_long_prefills_never_makes_the_group_unready(bench: Bench) -> None:
    before = bench.state()
    bodies = [
        {"model": MODEL, "prompt": [(7 * i + k) % 40000 + 100 for i in range(PROMPT_IDS)], "max_tokens": 2}
        for k in range(REQUESTS)
    ]
    seen: list[tuple[bool, int]] = []
    async with aiohttp.ClientSession() as session:
        running = [asyncio.create_task(_complete(session, bench, body)) for body in bodies]
        while not all(task.done() for task in running):
            ready = await asyncio.to_thread(bench.deployment.ready, 0)
            seen.append((ready, (await asyncio.to_thread(bench.state)).step))
        statuses = await asyncio.gather(*running)
    assert statuses == [200] * REQUESTS
    assert all(ready for ready, _ in seen)
    assert seen[-1][1] > seen[0][1] > 0
    assert bench.state().epoch == before.epoch


async def _complete(session: aiohttp.ClientSession, bench: Bench, body: dict[str, object]) -> int:
    async with session.post(f"{bench.deployment.url}/v1/completions", json=body) as response:
        await response.read()
        return response.status
