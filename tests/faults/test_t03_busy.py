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
    seen: list[int] = []
    async with aiohttp.ClientSession() as session:
        running = [asyncio.create_task(_complete(session, bench, body)) for body in bodies]
        while not all(task.done() for task in running):
            seen.append(await asyncio.to_thread(bench.says))
        statuses = await asyncio.gather(*running)
    assert statuses == [200] * REQUESTS
    assert set(seen) == {200}
    after = bench.state()
    assert (after.epoch, after.step > before.step) == (before.epoch, True)


async def _complete(session: aiohttp.ClientSession, bench: Bench, body: dict[str, object]) -> int:
    async with session.post(f"{bench.deployment.url}/v1/completions", json=body) as response:
        await response.read()
        return response.status
