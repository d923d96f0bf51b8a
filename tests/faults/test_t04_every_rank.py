"""T4: whichever rank dies, the others of its group live on with their weights and form again."""

import pytest

from tests.faults import inject
from tests.faults.bench import Bench
from tests.faults.parts import Part, one

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]


async def test_each_rank_in_turn_may_die_and_every_other_keeps_its_process_and_weights(bench: Bench) -> None:
    for stage in range(bench.pipeline):
        for rank in range(bench.tensor):
            before, epoch = bench.ranks(), bench.state().epoch
            inject.kill(one(bench.parts(), "rank", stage=stage, rank=rank))
            await bench.unready(epoch)
            await bench.again(epoch)
            after = bench.ranks()
            changed = {place for place in before if before[place] != after[place]}
            assert changed == {(stage, rank)}
    await bench.ask(bench.asks(tokens=16))


async def test_two_ranks_lost_at_once_and_a_third_loss_during_the_recovery_converge(bench: Bench) -> None:
    asks, epoch = bench.asks(), bench.state().epoch
    ranks = [part for part in bench.parts() if part.role == "rank"]
    async with bench.asking(asks):
        inject.kill(ranks[0])
        inject.kill(ranks[-1])
        await bench.unready(epoch)
        fresh: list[Part] = []
        await bench.wait(lambda: _any_new(bench, ranks, fresh), "no rank was started again")
        inject.kill(fresh[0])
    await bench.again(epoch)


def _any_new(bench: Bench, old: list[Part], found: list[Part]) -> bool:
    pids = {part.pid for part in old}
    found += [part for part in bench.parts() if part.role == "rank" and part.pid not in pids]
    return bool(found)


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
