"""T4: whichever rank dies, the others of its group live on with their weights and form again."""

import pytest

from tests.faults import inject
from tests.faults.bench import Bench
from tests.faults.parts import one

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]


async def test_each_rank_in_turn_may_die_and_every_other_keeps_its_process_and_weights(bench: Bench) -> None:
    for stage in range(bench.pipeline):
        for rank in range(bench.tensor):
            before, epoch = bench.ranks(), bench.state().epoch
            inject.kill(one(bench.parts(), "rank", stage=stage, rank=rank))
            await bench.unready()
            await bench.again(epoch)
            after = bench.ranks()
            changed = {place for place in before if before[place] != after[place]}
            assert changed == {(stage, rank)}
    await bench.ask(bench.asks(tokens=16))


async def test_two_ranks_lost_at_once_and_a_third_loss_during_the_recovery_converge(bench: Bench) -> None:
    asks, epoch = bench.asks(), bench.state().epoch
    async with bench.asking(asks):
        ranks = [part for part in bench.parts() if part.role == "rank"]
        inject.kill(ranks[0])
        inject.kill(ranks[-1])
        await bench.unready()
        await bench.wait(lambda: _new_rank(bench, {part.pid for part in ranks}) != 0, "no rank was started again")
        inject.kill(next(part for part in bench.parts() if part.role == "rank" and part not in ranks))
    await bench.again(epoch)


def _new_rank(bench: Bench, old: set[int]) -> int:
    return next((part.pid for part in bench.parts() if part.role == "rank" and part.pid not in old), 0)


async def test_a_rank_that_flaps_while_it_loads_converges(bench: Bench) -> None:
    asks, epoch = bench.asks(), bench.state().epoch
    place = {"stage": bench.pipeline - 1, "rank": 0}
    async with bench.asking(asks):
        for _ in range(3):
            victim = one(bench.parts(), "rank", **place)
            inject.kill(victim)
            await bench.wait(lambda dead=victim: _new_at(bench, place, dead.pid), "not started again")  # type: ignore[misc]
    await bench.again(epoch)


def _new_at(bench: Bench, place: dict[str, int], old: int) -> bool:
    return any(
        part.role == "rank" and (part.stage, part.rank) == (place["stage"], place["rank"]) and part.pid != old
        for part in bench.parts()
    )
