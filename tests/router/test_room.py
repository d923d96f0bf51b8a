"""The waiting room on a virtual clock: whose turn it is, who is refused, and that nobody waits in vain."""

import asyncio
from collections.abc import AsyncIterator, Iterable

import msgspec
import pytest

from bireme.names import Admission
from bireme.wire.requests import Limits
from bireme.wire.routes import Route, Routes
from bireme.wire.state import StageState
from bireme_router.accounts import Accounts, Lease
from bireme_router.affinity import Trail
from bireme_router.errors import NotTaken
from bireme_router.groups import Groups
from bireme_router.policies.cost import Cost
from bireme_router.policies.eligible import Key
from bireme_router.policies.prefix_credit import chain
from bireme_router.policies.priority import Priority
from bireme_router.room import WaitingRoom
from bireme_router.selection import Selection, Wish
from tests.support.stub_leader import StubLeader

pytestmark = pytest.mark.looptime

INTERACTIVE, STANDARD, BATCH = Priority


class Hall:
    """Groups on paper with a room before them, and what has been served, in order."""

    def __init__(self, groups: int = 1, *, running: int = 1, stages: int = 1, limit: int = 100) -> None:
        clock = asyncio.get_running_loop().time
        self.groups = Groups(Accounts(), clock)
        self.selection = Selection(self.groups, clock, lambda: 0.0)
        self.room = WaitingRoom(self.selection, limit)
        self.served: list[tuple[str, Lease]] = []
        self.refused: dict[str, NotTaken] = {}
        self.tasks: list[asyncio.Task[None]] = []
        routes = [Route(f"group-{n}", n, f"pod-{n}-1", 1, f"http://{n}", f"http://{n}", "") for n in range(groups)]
        self.groups.apply(Routes(1, ("m",), tuple(routes)), {})
        for route in routes:
            stub = StubLeader(route.index)
            stub.limits = Limits(4096, running, 0)
            parts = tuple(StageState(stage, 1, "b", 0.0, ()) for stage in range(stages))
            self.groups.heard(route, msgspec.structs.replace(stub.document(), stages=parts))

    async def ask(self, name: str, wish: Wish, *, begun: bool = False) -> None:
        """Get in line; returns when the request has settled where it is."""

        async def wait() -> None:
            try:
                self.served.append((name, await self.room.take(wish, begun=begun)))
            except NotTaken as error:
                self.refused[name] = error

        self.tasks.append(asyncio.create_task(wait()))
        await asyncio.sleep(0)

    async def finish_first(self) -> None:
        """The oldest request in service ends."""
        next(lease for _, lease in self.served if lease in self._open()).release()
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    def _open(self) -> list[Lease]:
        return self.groups.accounts.leases()

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.served]


@pytest.fixture
async def hall() -> AsyncIterator[Hall]:
    one = Hall()
    yield one
    await leave(one)


async def leave(one: Hall) -> None:
    for task in one.tasks:
        task.cancel()
    await asyncio.gather(*one.tasks, return_exceptions=True)


def wish(
    priority: Priority = STANDARD,
    key: str = "a",
    *,
    patience_s: float = 60.0,
    avoid: Iterable[Key] = (),
    text: bytes = b"",
) -> Wish:
    trail = Trail(chain(text), len(text))
    return Wish(Cost(100, 10), None, dict.fromkeys(avoid, 0.0), priority, key, trail, patience_s)


async def test_a_better_class_overtakes_in_the_room(hall: Hall) -> None:
    for name, priority in (("first", STANDARD), ("batch", BATCH), ("standard", STANDARD), ("urgent", INTERACTIVE)):
        await hall.ask(name, wish(priority))
    for _ in range(3):
        await hall.finish_first()
    assert hall.names == ["first", "urgent", "standard", "batch"]


async def test_one_keys_long_line_does_not_hold_up_another_key(hall: Hall) -> None:
    for n in range(6):
        await hall.ask(f"a{n}", wish(key="a"))
    await hall.ask("b", wish(key="b"))
    for _ in range(3):
        await hall.finish_first()
    assert "b" in hall.names[:3]


async def test_a_full_room_refuses_with_a_time_unless_a_lower_class_can_go() -> None:
    hall = Hall(limit=2)
    for name in ("served", "waits", "newest"):
        await hall.ask(name, wish(BATCH))
    await hall.ask("refused", wish(BATCH))
    assert hall.refused["refused"].status == Admission.QUEUE_FULL
    assert hall.refused["refused"].retry_after_s >= 1
    await hall.ask("urgent", wish(INTERACTIVE))
    await asyncio.sleep(0)
    assert set(hall.refused) == {"refused", "newest"}
    await leave(hall)


@pytest.mark.parametrize("begun", [True, False])
async def test_a_place_that_is_free_as_clients_leave_goes_to_one_who_stays(hall: Hall, *, begun: bool) -> None:
    for name in ("served", "leaves", "leaves too"):
        await hall.ask(name, wish(), begun=begun)
    await hall.ask("stays", wish())
    for task in hall.tasks[1:3]:
        task.cancel()
    await hall.finish_first()
    assert hall.names == ["served", "stays"]
    assert hall.groups.accounts.leases() == [hall.served[-1][1]]
    assert not hall.room.waiting


async def test_who_would_wait_in_vain_is_told_at_once_how_long_the_queue_takes(hall: Hall) -> None:
    for n in range(40):
        await hall.ask(str(n), wish(patience_s=1000.0))
    for _ in range(10):
        await asyncio.sleep(1.0)
        await hall.finish_first()
    await hall.ask("impatient", wish(patience_s=10.0))
    assert "are ahead and take about" in hall.refused["impatient"].message
    assert 20 <= hall.refused["impatient"].retry_after_s <= 40
    await hall.ask("patient", wish(patience_s=60.0))
    await hall.ask("urgent", wish(INTERACTIVE, patience_s=10.0))
    assert set(hall.refused) == {"impatient"}
    await hall.finish_first()
    assert hall.names[-1] == "urgent"


async def test_while_no_group_is_at_hand_nobody_is_refused_early(hall: Hall) -> None:
    for n in range(20):
        await hall.ask(str(n), wish())
    for _ in range(10):
        await asyncio.sleep(1.0)
        await hall.finish_first()
    route = hall.groups.all()[0].route
    hall.groups.silent(route, "its watch is lost")
    await asyncio.sleep(30.0)
    await hall.ask("late", wish(patience_s=1.0))
    assert not hall.refused


async def test_a_request_waits_for_an_untried_group_rather_than_go_back() -> None:
    hall = Hall(groups=2)
    tried = Key("pod-0-1", 1)
    await hall.ask("elsewhere", wish(avoid=[tried]))
    await hall.ask("again", wish(avoid=[tried]))
    assert hall.names == ["elsewhere"]
    await hall.finish_first()
    assert [lease.key.pod for _, lease in hall.served] == ["pod-1-1", "pod-1-1"]
    await leave(hall)


async def test_where_every_group_was_tried_the_request_goes_back(hall: Hall) -> None:
    await hall.ask("again", wish(avoid=[Key("pod-0-1", 1)]))
    assert hall.names == ["again"]


async def test_a_free_place_goes_to_a_waiting_request_whose_prefix_the_group_knows(hall: Hall) -> None:
    known = b"k" * 4096
    await hall.ask("begins", wish(text=known))
    await hall.ask("stranger", wish(text=b"s" * 4096))
    await hall.ask("friend", wish(text=known))
    await hall.finish_first()
    assert hall.names == ["begins", "friend"]
    await hall.finish_first()
    assert hall.names == ["begins", "friend", "stranger"]


async def test_two_stages_are_filled_before_a_second_group_is_woken() -> None:
    hall = Hall(groups=2, running=8, stages=2)
    for n in range(3):
        await hall.ask(str(n), wish())
    pods = [lease.key.pod for _, lease in hall.served]
    assert pods[0] == pods[1] != pods[2]
    await leave(hall)


async def test_slots_are_kept_for_interactive_requests_once_there_are_any() -> None:
    hall = Hall(running=16)
    await hall.ask("urgent", wish(INTERACTIVE))
    for n in range(20):
        await hall.ask(str(n), wish())
    assert len(hall.served) == 14
    await hall.ask("urgent too", wish(INTERACTIVE))
    assert hall.names[-1] == "urgent too"
    await leave(hall)


async def test_suspicion_of_the_only_group_is_panic_and_it_is_tried_again(hall: Hall) -> None:
    hall.groups.suspect(Key("pod-0-1", 1), "a request failed there")
    await hall.ask("tried", wish())
    assert hall.names == ["tried"]


async def test_one_suspected_group_of_two_gets_nothing() -> None:
    hall = Hall(groups=2, running=8)
    hall.groups.suspect(Key("pod-0-1", 1), "a request failed there")
    for n in range(4):
        await hall.ask(str(n), wish())
    assert {lease.key.pod for _, lease in hall.served} == {"pod-1-1"}
    await leave(hall)
