"""T2: a rank that hangs with work pending makes the group unready; if it comes back soon it keeps its weights."""

import pytest

from tests.faults import inject
from tests.faults.bench import Bench
from tests.faults.parts import one

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]


async def test_a_stopped_rank_shows_and_returns_with_its_weights_when_continued(bench: Bench) -> None:
    before, asks = bench.ranks(), bench.asks()
    epoch, killings = bench.state().epoch, bench.deployment.killings()
    victim = one(bench.parts(), "rank", stage=bench.pipeline - 1, rank=bench.tensor - 1)
    async with bench.asking(asks):
        with inject.stopped(victim):
            await bench.unready(epoch)
    await bench.again(epoch)
    # Where this process got no turn for as long as a hung rank is given, that rank was killed as it should be.
    assert (bench.ranks() == before) == (bench.deployment.killings() == killings)


async def test_a_rank_that_stays_stopped_is_replaced_and_costs_no_request(bench: Bench) -> None:
    asks, epoch = bench.asks(), bench.state().epoch
    victim = one(bench.parts(), "rank", stage=0, rank=bench.tensor - 1)
    async with bench.asking(asks):
        with inject.stopped(victim):
            await bench.wait(lambda: victim.pid not in {pid for pid, _ in bench.ranks().values()}, "never replaced")
    await bench.again(epoch)
