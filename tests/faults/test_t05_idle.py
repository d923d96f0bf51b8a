"""T5: idle is healthy: a group that had nothing to do for longer than any limit serves the next request at once."""

import asyncio

import pytest

from bireme_worker.supervisor.limits import Limits
from tests.faults.bench import Bench

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]


async def test_a_group_that_was_idle_beyond_every_limit_of_silence_serves_in_the_same_epoch(bench: Bench) -> None:
    await asyncio.to_thread(bench.deployment.wait_serving, 1)
    epoch, limits = bench.state().epoch, Limits()
    longest = max(limits.silent_kill_s, limits.peer_silent_s, limits.progress_s, limits.ending_s)
    until = asyncio.get_running_loop().time() + longest + 1
    while asyncio.get_running_loop().time() < until:
        assert await asyncio.to_thread(bench.says) == 200
    await bench.ask(bench.asks(tokens=16))
    assert bench.state().epoch == epoch
