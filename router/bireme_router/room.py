"""The waiting room: requests for which no group is at hand now, by class, fair between keys, bounded.

A request that a client already holds part of goes first and is never refused. Who would only wait in vain is refused at
once, with the time that the queue takes. Places are dealt out on every change of any group, and at a steady beat,
because a target that a request avoids becomes usable by time alone.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final

from bireme.names import Admission
from bireme_router.accounts import Lease
from bireme_router.errors import NotTaken
from bireme_router.policies.early_refusal import Departures, in_vain
from bireme_router.policies.fair_queue import FairQueue, Waiting
from bireme_router.policies.priority import Priority
from bireme_router.policies.retry_after import retry_after_s
from bireme_router.selection import Selection, Wish

_BEAT_S: Final = 0.05
WINDOW: Final = 32
"""Entries of a class among which a free place looks for the one whose prefix it knows; each eighth place does not."""


class _Place(asyncio.Future[Lease]):
    """A place that is waited for. Who gives up is out of line at once: a cancelled task runs only later."""

    def __init__(self) -> None:
        super().__init__()
        self.leave: Callable[[], object]

    def cancel(self, msg: object = None) -> bool:
        """Called by the task that waits, as it is cancelled."""
        self.leave()
        return super().cancel(msg)


class _Waiter:
    __slots__ = ("place", "wish")

    def __init__(self, wish: Wish) -> None:
        self.wish = wish
        self.place = _Place()


class WaitingRoom:
    """Deals out places on groups; ``limit`` bounds the requests that nothing was sent of yet."""

    def __init__(self, selection: Selection, limit: int) -> None:
        self._selection = selection
        self._limit = limit
        self._clock = asyncio.get_running_loop().time
        self._begun: dict[_Waiter, None] = {}
        self._queue: FairQueue[_Waiter] = FairQueue()
        self._departures = Departures()
        self._measured_at: float | None = None
        self._beat: asyncio.TimerHandle | None = None
        selection.groups.on_change = self.deal

    @property
    def waiting(self) -> int:
        """Requests that wait."""
        return len(self._begun) + len(self._queue)

    def waiting_of(self, priority: Priority) -> int:
        """Requests of one class that wait; those that have begun are in none."""
        return self._queue.waiting(priority)

    def retry_after_s(self) -> int:
        """When it is worth to ask again, by the groups and by the queue."""
        return retry_after_s(self._selection.groups.promises(), self._departures.wait_s(len(self._queue)))

    def settle(self, key: str, tokens: float) -> None:
        """A request of ``key`` took so many tokens more than it was charged."""
        self._queue.charge(key, tokens)

    async def take(self, wish: Wish, *, begun: bool) -> Lease:
        """A place on a group; waits for it without a limit of its own. ``begun``: the client holds a part already.

        Raises:
            NotTaken: the room is full, or the wait would be longer than the request's patience.
        """
        ahead = 0 if begun else self._queue.ahead_of(wish.key, wish.priority)
        if not ahead and (lease := self._selection.choose(wish)) is not None:
            self._queue.charge(wish.key, wish.cost.tokens)
            return lease
        waiter = _Waiter(wish)
        if begun:
            self._begun[waiter] = None
            return await self._wait(waiter.place, partial(self._begun.pop, waiter, None))
        self._refuse_early(wish, ahead)
        self._make_room(wish.priority)
        entry = Waiting(waiter, wish.key, wish.priority, self._clock())
        self._queue.push(entry)
        return await self._wait(waiter.place, partial(self._queue.remove, entry))

    def deal(self) -> None:
        """Give a place to everybody who can have one, in order."""
        given = 0
        if self._deal_begun():
            while self._deal_next():
                given += 1
        self._measure(given)
        self._keep_beating()

    def _deal_begun(self) -> bool:
        """Whether anything may be left for the others."""
        for waiter in list(self._begun):
            lease = self._selection.choose(waiter.wish)
            if lease is not None:
                del self._begun[waiter]
                waiter.place.set_result(lease)
            elif waiter.wish.takes_any:
                return False
        return True

    def _deal_next(self) -> bool:
        """One place for the first in order who can have one; a class without a place leaves none to lower ones."""
        closed: int = len(Priority)
        for first in self._queue.in_order():
            if first.priority >= closed:
                break
            entry = self._nearest(first)
            wish = entry.item.wish
            lease = self._selection.choose(wish)
            if lease is not None:
                self._queue.remove(entry)
                self._queue.charge(entry.key, wish.cost.tokens)
                self._queue.placed()
                entry.item.place.set_result(lease)
                return True
            if wish.takes_any:
                closed = entry.priority
        return False

    def _nearest(self, first: Waiting[_Waiter]) -> Waiting[_Waiter]:
        """``first``, or one shortly behind it whose prompt a free group knows better."""
        if self._queue.oldest_turn or not first.item.wish.takes_any:
            return first
        line = [one for one in self._queue.line(first.priority, WINDOW) if one.item.wish.takes_any]
        return line[self._selection.nearest([one.item.wish for one in line])]

    def _refuse_early(self, wish: Wish, ahead: int) -> None:
        wait_s = self._departures.wait_s(ahead + 1) if self._selection.any_ready() else None
        if wait_s is not None and in_vain(wait_s, wish.patience_s):
            raise NotTaken(
                Admission.QUEUE_FULL,
                f"{ahead} requests are ahead and take about {wait_s:.0f} s, this one may wait {wish.patience_s:g} s: "
                "ask again later",
                self.retry_after_s(),
            )

    def _make_room(self, priority: Priority) -> None:
        """Refuse this request, or one of a lower class in its stead, if the room is full."""
        if len(self._queue) < self._limit:
            return
        full = NotTaken(
            Admission.QUEUE_FULL,
            f"{len(self._queue)} requests wait for a group already, the limit is {self._limit}: ask again later",
            self.retry_after_s(),
        )
        last = self._queue.last_below(priority)
        if last is None:
            raise full
        self._queue.remove(last)
        last.item.place.set_exception(full)

    async def _wait(self, place: _Place, leave: Callable[[], object]) -> Lease:
        place.leave = leave
        if self._measured_at is None:
            self._measured_at = self._clock()
        self._keep_beating()
        try:
            return await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled() and place.exception() is None:
                place.result().release()
            raise

    def _measure(self, given: int) -> None:
        now = self._clock()
        if self._measured_at is not None:
            self._departures = self._departures.after(given, now - self._measured_at)
        self._measured_at = now if self._queue and self._selection.any_ready() else None

    def _keep_beating(self) -> None:
        if self.waiting and self._beat is None:
            self._beat = asyncio.get_running_loop().call_later(_BEAT_S, self._on_beat)

    def _on_beat(self) -> None:
        self._beat = None
        self.deal()
