"""Groups of which there is nothing new to be thought: what the last pass thought of them still holds.

A deployment has hundreds of groups, and what happens happens to a few of them. A pass over the others costs a look at
whether their pods, their leader's word and their memory are the very objects of the last pass. Nothing is kept here
that a pass without it would not find again: a plan with it and one without are the same.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from operator import is_
from typing import Final

from bireme.api.status import GroupStatus
from bireme_operator.plan.desired import Desired
from bireme_operator.plan.group import Group
from bireme_operator.plan.memory import GroupMemory
from bireme_operator.plan.observed import LeaderView, Observed, PodView

_EVER: Final = float("inf")


@dataclass(frozen=True)
class _Resting:
    """What was seen of a group, and what came of it. ``times`` are when it is judged otherwise without any news."""

    pods: tuple[PodView, ...]
    leader: LeaderView | None
    shortage: str
    conflict: str
    group: Group
    said: GroupStatus
    times: tuple[float, ...]

    @property
    def until(self) -> float:
        return min(self.times, default=_EVER)


class Rest:
    """The groups at rest of one deployment, from pass to pass."""

    def __init__(self) -> None:
        self._desired: Desired | None = None
        self._groups: dict[int, _Resting] = {}

    def begin(self, desired: Desired) -> Desired:
        """Begin a pass; return the equal wish of the last one. Another wish is a reason to think of every group."""
        if self._desired is None or self._desired != desired:
            self._desired, self._groups = desired, {}
        return self._desired

    def find(self, index: int, known: GroupMemory | None, observed: Observed, now: float) -> Group | None:
        """Return the group as the last pass saw it, if there is nothing new."""
        resting = self._groups.get(index)
        if resting is None or known is not resting.group.memory or now >= resting.until:
            return None
        pods = observed.by_group.get(index, ())
        same = len(pods) == len(resting.pods) and all(map(is_, pods, resting.pods))
        same = same and not _has_stranger(pods, observed)
        if not same or observed.without_quota.get(index, "") != resting.shortage:
            return None
        return self._heard(resting, observed.leaders.get(index), now)

    def holds(self, group: Group) -> bool:
        """Whether this is a group at rest: nothing of it is to be done or to be remembered."""
        resting = self._groups.get(group.index)
        return resting is not None and resting.group is group

    def said(self, group: Group, conflict: str) -> GroupStatus | None:
        """Return what was said of a group at rest."""
        resting = self._groups.get(group.index)
        return resting.said if resting and resting.group is group and resting.conflict == conflict else None

    def times(self, group: Group) -> tuple[float, ...]:
        """Return when a group at rest is judged otherwise."""
        return self._groups[group.index].times

    def settle(
        self,
        groups: Iterable[tuple[Group, GroupStatus]],
        observed: Observed,
        times: Callable[[Group], Iterable[float]],
        now: float,
    ) -> None:
        """Let groups rest of which nothing was done and nothing new is remembered, unless time will tell soon."""
        for group, said in groups:
            index, due = group.index, tuple(times(group))
            leader = observed.leaders.get(index)
            doubted = group.unheard_s is not None or (leader is not None and group.document is not leader.document)
            pods = observed.by_group.get(index, ())
            doubted = doubted or _has_stranger(pods, observed)
            if doubted or group.gated or min(due, default=_EVER) <= now:
                self.forget((index,))
                continue
            conflict, shortage = observed.conflicts.get(index, ""), observed.without_quota.get(index, "")
            self._groups[index] = _Resting(pods, leader, shortage, conflict, group, said, due)

    def forget(self, indices: Iterable[int]) -> None:
        """Forget groups of which something is being done, or that are no more."""
        for index in indices:
            self._groups.pop(index, None)

    def _heard(self, resting: _Resting, leader: LeaderView | None, now: float) -> Group | None:
        """Return the group with the newest word of its leader, as long as that says nothing new."""
        known = resting.leader
        if leader is None or known is None:
            return resting.group if leader is known else None
        if not leader.fresh(now, since=known.heard_at):
            return None
        if leader is known:
            return resting.group
        if known.word is None or leader.word is not known.word or leader.pod != known.pod:
            return None
        group = replace(resting.group, document=leader.document, heard_at=leader.heard_at)
        self._groups[group.index] = replace(resting, leader=leader, group=group)
        return group


def _has_stranger(pods: Iterable[PodView], observed: Observed) -> bool:
    return bool(observed.strangers) and any(pod.name in observed.strangers for pod in pods)
