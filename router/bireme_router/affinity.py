"""Where a request's prompt or conversation has been before, and whether the groups' own counts bear that out.

Histories belong to (pod, epoch), as failures do: a group that re-formed has lost its cache. The sums of predicted and
reported cached tokens are metrics, because a wrong prediction shows nowhere else (a hit rate of 0 with all else green).
"""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from bireme_router.policies.eligible import Key
from bireme_router.policies.prefix_credit import SESSION_SHARE, PrefixHistory, share, trust_after

_TOKENS_PER_HISTORY_BLOCK: Final = 256
_UNKNOWN_CAPACITY: Final = 4096
_MOST_CAPACITY: Final = 65_536
MOST_SESSIONS: Final = 100_000


@dataclass(frozen=True)
class Trail:
    """What tells that a prompt is like an earlier one. ``prefix``: chained hashes of its ``size`` bytes."""

    prefix: tuple[int, ...] = ()
    size: int = 0
    session: str = ""


class Affinity:
    """One router's memory of prompts and sessions."""

    def __init__(self) -> None:
        self.predicted = 0
        """Cached tokens that were predicted, of the requests whose groups reported."""
        self.reported = 0
        """Cached tokens that the groups reported for the same requests."""
        self._histories: dict[Key, PrefixHistory] = {}
        self._trust: dict[Key, float] = {}
        self._sessions: OrderedDict[str, Key] = OrderedDict()

    def cached_share(self, key: Key, trail: Trail) -> float:
        """Share of the prompt that ``key`` is likely to have, 0 to 1, before trust."""
        history = self._histories.get(key)
        known = share(history.matched(trail.prefix), trail.size) if history is not None and trail.prefix else 0.0
        return max(known, SESSION_SHARE) if self._holds_session(key, trail) else known

    def trust(self, key: Key) -> float:
        """How far that is believed."""
        return self._trust.get(key, 1.0)

    def sent(self, key: Key, trail: Trail, kv_tokens: int) -> None:
        """A request goes there; ``kv_tokens`` is the size of the group's KV cache, 0: unknown."""
        if trail.prefix:
            history = self._histories.get(key)
            if history is None:
                wanted = kv_tokens // _TOKENS_PER_HISTORY_BLOCK or _UNKNOWN_CAPACITY
                history = self._histories[key] = PrefixHistory(min(wanted, _MOST_CAPACITY))
            history.remember(trail.prefix)
        if trail.session:
            self._sessions[trail.session] = key
            self._sessions.move_to_end(trail.session)
            if len(self._sessions) > MOST_SESSIONS:
                self._sessions.popitem(last=False)

    def verified(self, key: Key, predicted: int, reported: int) -> None:
        """A group said how many prompt tokens it really had."""
        self.predicted += predicted
        self.reported += reported
        if key in self._histories:
            self._trust[key] = trust_after(self.trust(key), predicted, reported)

    def forget_all(self, but: set[Key]) -> None:
        """Drop what belongs to targets that are gone."""
        for key in self._histories.keys() - but:
            del self._histories[key]
            self._trust.pop(key, None)

    def _holds_session(self, key: Key, trail: Trail) -> bool:
        return bool(trail.session) and self._sessions.get(trail.session) == key
