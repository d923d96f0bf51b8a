"""What happened to the groups lately: the last transitions with their times, and how long each absence took.

The router does not decide anything by it; people do, on the page and at `/admin/routes`.
"""

import time
from collections import deque
from collections.abc import Callable
from typing import Final

import msgspec

from bireme_router.groups import NOT_HEARD, Group, Groups
from bireme_router.policies.eligible import why_not_ready

KEPT: Final = 50


class Transition(msgspec.Struct, frozen=True):
    """A group changed. ``away_s``: how long it was not ready, when it came back; else None."""

    at: float
    group: int
    pod: str
    epoch: int
    state: str
    reason: str
    away_s: float | None


class _Seen(msgspec.Struct):
    pod: str
    epoch: int
    state: str
    away_since: float | None


class History:
    """Compares each look at the groups with the one before."""

    def __init__(self, groups: Groups, wall: Callable[[], float] = time.time) -> None:
        self._groups = groups
        self._wall = wall
        self._seen: dict[int, _Seen] = {}
        self._transitions: deque[Transition] = deque(maxlen=KEPT)

    def newest_first(self) -> list[Transition]:
        """The last transitions."""
        return list(reversed(self._transitions))

    def look(self) -> None:
        """Note what changed."""
        groups = self._groups.all()
        for group in groups:
            self._look_at(group)
        for index in self._seen.keys() - {group.route.index for group in groups}:
            del self._seen[index]

    def _look_at(self, group: Group) -> None:
        index, key, state = group.route.index, group.key, state_of(group)
        before = self._seen.get(index)
        if before is None and group.unknown == NOT_HEARD:
            return
        if before is not None and (before.pod, before.epoch, before.state) == (key.pod, key.epoch, state):
            return
        now = self._wall()
        ready = state == "Serving"
        away_since = None if ready else now
        away_s: float | None = None
        if before is not None and before.away_since is not None:
            away_s = now - before.away_since if ready else None
            away_since = None if ready else before.away_since
        elif before is not None and ready and before.epoch != key.epoch:
            away_s = 0.0  # re-formed between two looks
        self._seen[index] = _Seen(key.pod, key.epoch, state, away_since)
        reason = why_not_ready(self._groups.standing(group))
        self._transitions.append(Transition(now, index, key.pod, key.epoch, state, reason, away_s))


def state_of(group: Group) -> str:
    """One word: the leader's own state, or this router's reason against it."""
    if group.unknown:
        return "Unknown"
    if group.suspicion:
        return "Suspect"
    return group.document.state if group.document else "Unknown"
