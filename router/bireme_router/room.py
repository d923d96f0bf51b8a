"""The waiting room: requests for which no group is at hand now, first come first served, bounded.

A request that a client already holds part of goes first and is never refused. Places are dealt out on every
change of any group, and at a steady beat, because a target that a request avoids becomes usable by time alone.
"""

import asyncio
from collections import deque
from typing import Final

from bireme.names import Admission
from bireme_router.accounts import Lease
from bireme_router.errors import NotTaken
from bireme_router.groups import Groups, Wish
from bireme_router.policies.retry_after import retry_after_s

_BEAT_S: Final = 0.05


class _Waiter:
    __slots__ = ("place", "wish")

    def __init__(self, wish: Wish, place: "asyncio.Future[Lease]") -> None:
        self.wish = wish
        self.place = place


class WaitingRoom:
    """Deals out places on groups; ``limit`` bounds the requests that nothing was sent of yet."""

    def __init__(self, groups: Groups, limit: int) -> None:
        self._groups = groups
        self._limit = limit
        self._queue: deque[_Waiter] = deque()
        self._beat: asyncio.TimerHandle | None = None
        groups.on_change = self.deal

    @property
    def waiting(self) -> int:
        """Requests that wait."""
        return len(self._queue)

    async def take(self, wish: Wish, *, begun: bool) -> Lease:
        """A place on a group; waits for it without a limit of its own. ``begun``: the client holds a part already.

        Raises:
            NotTaken: the room is full.
        """
        if (begun or not self._queue) and (lease := self._groups.choose(wish)) is not None:
            return lease
        if not begun and len(self._queue) >= self._limit:
            raise NotTaken(
                Admission.QUEUE_FULL,
                f"{len(self._queue)} requests wait for a group already, the limit is {self._limit}: ask again later",
                retry_after_s(self._groups.promises()),
            )
        waiter = _Waiter(wish, asyncio.get_running_loop().create_future())
        if begun:
            self._queue.appendleft(waiter)
        else:
            self._queue.append(waiter)
        return await self._wait(waiter)

    def deal(self) -> None:
        """Give a place to everybody who can have one, in order."""
        for waiter in list(self._queue):
            if waiter.place.done():
                continue
            lease = self._groups.choose(waiter.wish)
            if lease is not None:
                waiter.place.set_result(lease)
            elif waiter.wish.takes_any:
                break  # who wants more can't have less
        self._keep_beating()

    async def _wait(self, waiter: _Waiter) -> Lease:
        self._keep_beating()
        try:
            return await waiter.place
        except asyncio.CancelledError:
            if waiter.place.done() and not waiter.place.cancelled():
                waiter.place.result().release()
            raise
        finally:
            self._queue.remove(waiter)

    def _keep_beating(self) -> None:
        if self._queue and self._beat is None:
            self._beat = asyncio.get_running_loop().call_later(_BEAT_S, self._on_beat)

    def _on_beat(self) -> None:
        self._beat = None
        self.deal()
