"""T1: a lost rank shows at once and costs no request, idle or busy."""

import pytest

from tests.faults import inject
from tests.faults.bench import Bench
from tests.faults.parts import one

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]


def _last_rank(bench: Bench) -> dict[str, int]:
    return {"stage": bench.pipeline - 1, "rank": bench.tensor - 1}


async def test_a_rank_that_dies_while_idle_makes_the_group_unready_and_then_it_serves_again(bench: Bench) -> None:
    before = bench.state().epoch
    inject.kill(one(bench.parts(), "rank", **_last_rank(bench)))
    await bench.unready(before)
    await bench.again(before)
    await bench.ask(bench.asks(tokens=16))


async def test_a_rank_that_dies_while_generating_costs_no_request_and_changes_no_token(bench: Bench) -> None:
    before, asks = bench.state().epoch, bench.asks()
    victim = one(bench.parts(), "rank", **_last_rank(bench))
    async with bench.asking(asks):
        inject.kill(victim)
        await bench.unready(before)
    await bench.again(before)
