"""T9: a client that leaves takes its request with it: slots and blocks are free again at once."""

import asyncio

import aiohttp
import pytest

from tests.faults.bench import Bench
from tests.faults.leaks import busy_gauges

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
async def test_a_client_that_leaves_frees_its_slot_and_blocks(stream: bool, bench: Bench) -> None:
    (ask,) = bench.asks(("greedy",), tokens=1500)
    ask.body["stream"] = stream
    ask.body.pop("stream_options")
    async with aiohttp.ClientSession() as session:
        request = session.post(f"{bench.deployment.url}/v1/chat/completions", json=ask.body)
        if stream:
            async with request as response:
                for _ in range(6):
                    assert await response.content.readline()
        else:
            sending = asyncio.ensure_future(request.__aenter__())
            await bench.wait(lambda: bench.state().running > 0, "never ran")
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
    await bench.wait(lambda: not busy_gauges(bench.deployment, 1), "something is left of the request")
