"""T7: nothing outlives its parent, and a leader that dies takes no other stage with it."""

import pytest

from tests.faults import inject
from tests.faults.bench import Bench
from tests.faults.parts import one
from tests.support.deployment import parent_of

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]


async def test_a_killed_leader_takes_all_its_children_and_no_other_rank(bench: Bench) -> None:
    asks, epoch, before = bench.asks(), bench.state().epoch, bench.ranks()
    leader = one(bench.parts(), "supervisor", stage=0)
    children = [part.pid for part in bench.parts() if part.pid != leader.pid and _parent(part.pid) == leader.pid]
    assert len(children) >= bench.tensor + 2
    async with bench.asking(asks):
        inject.kill(leader)
        await bench.wait(lambda: not any(_parent(pid) > 1 for pid in children), "children outlived their supervisor")
    await bench.again(epoch)
    survivors = {place: rank for place, rank in before.items() if place[0] > 0}
    assert {place: rank for place, rank in bench.ranks().items() if place[0] > 0} == survivors


def _parent(pid: int) -> int:
    """0 for a process that is gone."""
    try:
        return parent_of(pid)
    except (FileNotFoundError, ProcessLookupError):
        return 0
