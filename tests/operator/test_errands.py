"""Work beside the visits: one errand of a name at a time, and none that fails unseen."""

import asyncio

import pytest

from bireme_operator.kube.errors import Unavailable
from bireme_operator.shell.errands import Errands


class Bell:
    """Counts how often another visit was asked for."""

    def __init__(self) -> None:
        self.rung = 0

    def __call__(self) -> None:
        self.rung += 1


async def fail() -> None:
    raise Unavailable("HTTP 503")


async def test_an_errand_is_under_way_until_it_ends_and_then_asks_for_a_visit() -> None:
    bell, door = Bell(), asyncio.Event()
    errands = Errands(bell)

    async def wait() -> None:
        await door.wait()

    errands.begin("a", wait())
    assert "a" in errands
    door.set()
    await errands.finish("a")
    await asyncio.sleep(0)
    assert "a" not in errands
    assert bell.rung == 1
    errands.check()


async def test_what_fails_fails_the_next_visit_once_and_asks_for_it() -> None:
    bell = Bell()
    errands = Errands(bell)
    errands.begin("a", fail())
    await errands.finish("a")
    await asyncio.sleep(0)
    assert bell.rung == 1
    with pytest.raises(Unavailable):
        errands.check()
    errands.check()


async def test_what_is_given_up_is_no_failure() -> None:
    bell = Bell()
    errands = Errands(bell)
    errands.begin("a", asyncio.sleep(3600))
    await errands.close()
    errands.check()
    assert "a" not in errands
    assert bell.rung == 0
