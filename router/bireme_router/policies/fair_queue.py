"""The order of the waiting room: class first, then the key that got the fewest tokens, then first come first served.

Each key has a virtual counter of tokens; a key that comes back from idleness is lifted to the least active one, so idle
time is no credit (Sheng et al., Fairness in Serving Large Language Models). Every eighth place goes to whoever
has waited longest, so that no class starves.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final, Generic, TypeVar

from bireme_router.policies.priority import Priority

OLDEST_EVERY: Final = 8
MOST_KEYS: Final = 4096

Item = TypeVar("Item")


@dataclass(frozen=True, eq=False)
class Waiting(Generic[Item]):
    """One entry. ``since`` is any steady clock."""

    item: Item
    key: str
    priority: Priority
    since: float


class FairQueue(Generic[Item]):
    """Entries by class and key, and what each key was served."""

    def __init__(self) -> None:
        self._classes: dict[Priority, dict[str, dict[Waiting[Item], None]]] = {one: {} for one in Priority}
        self._served: dict[str, float] = {}
        self._places = 0
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def push(self, entry: Waiting[Item]) -> None:
        """Add one at the end of its key's line."""
        self._lift(entry.key)
        self._classes[entry.priority].setdefault(entry.key, {})[entry] = None
        self._size += 1

    def remove(self, entry: Waiting[Item]) -> None:
        """Take one out, wherever it is; one that is out already stays out."""
        keys = self._classes[entry.priority]
        line = keys.get(entry.key, {})
        if entry in line:
            del line[entry]
            self._size -= 1
            if not line:
                del keys[entry.key]

    def charge(self, key: str, tokens: float) -> None:
        """A key was served so many tokens (or fewer than were charged: negative)."""
        self._served[key] = max(self._served.get(key, 0.0) + tokens, 0.0)
        if len(self._served) > MOST_KEYS:
            active = {name for keys in self._classes.values() for name in keys}
            self._served = {name: served for name, served in self._served.items() if name in active or name == key}

    def placed(self) -> None:
        """A place was given away: every eighth time the oldest entry is next."""
        self._places += 1

    def in_order(self) -> Iterator[Waiting[Item]]:
        """The entries as they are to be served; a change of the queue ends the order's meaning."""
        if self.oldest_turn and self._size:
            yield min(self._heads(), key=lambda entry: entry.since)
        for priority in Priority:
            yield from self._in_class(priority)

    @property
    def oldest_turn(self) -> bool:
        """Whether the next place is that of the oldest entry."""
        return self._places % OLDEST_EVERY == OLDEST_EVERY - 1

    def line(self, priority: Priority, most: int) -> list[Waiting[Item]]:
        """The first entries of one class, in order."""
        return list(islice(self._in_class(priority), most))

    def ahead_of(self, key: str, priority: Priority) -> int:
        """Entries that will be served before a new one of ``key``: better classes, and as many of each other key."""
        better = sum(len(line) for one in Priority if one < priority for line in self._classes[one].values())
        keys = self._classes[priority]
        own = len(keys.get(key, ()))
        return better + own + sum(min(len(line), own + 1) for name, line in keys.items() if name != key)

    def last_below(self, priority: Priority) -> Waiting[Item] | None:
        """Who would be served last among the lower classes: the newest of the longest line."""
        for one in sorted(Priority, reverse=True):
            if one > priority and (lines := list(self._classes[one].values())):
                longest: dict[Waiting[Item], None] = max(lines, key=len)
                return next(reversed(longest))
        return None

    def waiting(self, priority: Priority) -> int:
        """Entries of one class."""
        return sum(len(line) for line in self._classes[priority].values())

    def _in_class(self, priority: Priority) -> Iterator[Waiting[Item]]:
        keys = self._classes[priority]
        for key in sorted(keys, key=lambda name: self._served.get(name, 0.0)):
            yield from keys[key]

    def _heads(self) -> Iterator[Waiting[Item]]:
        for keys in self._classes.values():
            for line in keys.values():
                yield next(iter(line))

    def _lift(self, key: str) -> None:
        active = {name for keys in self._classes.values() for name in keys}
        if active and key not in active:
            least = min(self._served.get(name, 0.0) for name in active)
            self._served[key] = max(self._served.get(key, 0.0), least)
