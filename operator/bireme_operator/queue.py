"""A keyed work queue: each key is worked on by one worker at a time, however often and by whomever it is asked for.

Asking again while a key waits changes nothing, asking while it is worked on makes it due once more. ``urgent`` keys
overtake the rest, so that a lost stage does not wait behind the list of a whole cluster at start-up. Failed keys come
back after a wait that doubles and is spread by chance, so that a sick API server is not asked by all at once.

Time and chance are the caller's: ``clock`` in seconds, ``chance`` in [0, 1).
"""

import asyncio
import heapq
from collections.abc import Callable, Hashable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)

FIRST_RETRY_S: Final = 0.1
LAST_RETRY_S: Final = 60.0
_TICK_S: Final = 0.001
"""A loop may wake a little early; what is due in the next moment is due."""
_RETRY_WITH_NEWS_S: Final = 1.0
"""Something has changed while the failing work was done, so the next try may well succeed."""


@dataclass(order=True, frozen=True)
class _Turn:
    """A place in the queue: urgent ones first, then the ones asked for first."""

    rank: int
    number: int


class WorkQueue(Generic[Key]):
    """See the module. ``get`` and ``done`` belong together, as in ``asyncio.Queue``."""

    def __init__(self, clock: Callable[[], float], chance: Callable[[], float]) -> None:
        self._clock = clock
        self._chance = chance
        self._numbers = 0
        self._waiting: dict[Key, _Turn] = {}
        self._order: list[tuple[_Turn, Key]] = []
        self._later: dict[Key, float] = {}
        self._working: set[Key] = set()
        self._again: dict[Key, int] = {}
        self._failures: dict[Key, int] = {}
        self._resting: dict[Key, float] = {}
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        """Keys that are due and wait for a worker."""
        return len(self._waiting)

    def add(self, key: Key, *, urgent: bool = True) -> None:
        """Make ``key`` due now."""
        rank = 0 if urgent else 1
        if key in self._working:
            self._again[key] = min(self._again.get(key, rank), rank)
            return
        if (until := self._resting.get(key, 0.0)) > self._clock() + _TICK_S:
            self.add_at(key, until)
            return
        self._later.pop(key, None)
        known = self._waiting.get(key)
        if known is None or rank < known.rank:
            self._numbers += 1
            turn = self._waiting[key] = _Turn(rank, self._numbers)
            heapq.heappush(self._order, (turn, key))
            self._changed.set()

    def add_at(self, key: Key, when: float) -> None:
        """Make ``key`` due at ``when`` at the latest; an earlier time that was set before stays."""
        if key not in self._waiting and when < self._later.get(key, float("inf")):
            self._later[key] = when
            self._changed.set()

    async def get(self) -> Key:
        """Wait for the next key; it is the caller's until ``done``."""
        while (key := self._next()) is None:
            self._changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._until_next()):
                    await self._changed.wait()
        self._working.add(key)
        return key

    def done(self, key: Key, rest_s: float = 0.0) -> None:
        """Give a key back after it was worked on. What is asked of it within ``rest_s`` seconds is done in one then."""
        self._failures.pop(key, None)
        if rest_s > 0:
            self._resting[key] = self._clock() + rest_s
        self._give_back(key)

    def failed(self, key: Key) -> float:
        """Give a key back that could not be worked on, and return the wait before its next turn in seconds."""
        count = self._failures[key] = self._failures.get(key, 0) + 1
        wait = min(FIRST_RETRY_S * 2.0 ** min(count - 1, 16), LAST_RETRY_S) * (0.5 + self._chance() / 2)
        if self._again.pop(key, None) is not None:
            wait = min(wait, _RETRY_WITH_NEWS_S)
        self._give_back(key)
        self._later.pop(key, None)
        self.add_at(key, self._clock() + wait)
        return wait

    def _give_back(self, key: Key) -> None:
        self._working.discard(key)
        self._changed.set()  # what is due later may be handed out from now on
        rank = self._again.pop(key, None)
        if rank is not None:
            self.add(key, urgent=rank == 0)

    def _next(self) -> Key | None:
        now = self._clock() + _TICK_S
        for key in [key for key, when in self._later.items() if when <= now and key not in self._working]:
            self.add(key)
        while self._order:
            turn, key = heapq.heappop(self._order)
            if self._waiting.get(key) == turn:
                del self._waiting[key]
                self._resting.pop(key, None)
                return key
        return None

    def _until_next(self) -> float | None:
        waiting = [when for key, when in self._later.items() if key not in self._working]
        return max(min(waiting) - self._clock(), 0.0) if waiting else None
