"""Which group gets a request now: puts what the router knows before the policies, and takes the place that they choose.

Usable is what may be used at all (``eligible``), is not full for the request's class (``concurrency``, ``slow_start``),
and has not failed this request before, unless every group has. Among those ``placement`` decides by cost.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from bireme_router.accounts import Lease
from bireme_router.affinity import Trail
from bireme_router.groups import Group, Groups
from bireme_router.policies.canary import version_for
from bireme_router.policies.concurrency import RECENT_S, most_in_flight, prefill_full
from bireme_router.policies.cost import Cost, Work, seconds
from bireme_router.policies.eligible import Key
from bireme_router.policies.panic import panics
from bireme_router.policies.placement import Candidate, Price, place
from bireme_router.policies.priority import Priority
from bireme_router.policies.slow_start import ramps

_NOTHING: Final = Work(0.0, 0.0)

Policy = Callable[[Sequence[Candidate], Callable[[int], Price], tuple[float, float]], int]
"""Chooses one of the usable groups; ``placement.place``, or what a benchmark compares it with."""


@dataclass(frozen=True)
class Wish:
    """What a request needs. ``avoid``: targets that failed it, until when; ``model_revision`` None: any.

    ``key`` is the caller, an opaque name by which fairness counts; ``patience_s`` how long it may wait; ``zone`` where
    the caller is, empty: unknown.
    """

    cost: Cost
    model_revision: str | None
    avoid: Mapping[Key, float]
    priority: Priority = Priority.STANDARD
    key: str = ""
    trail: Trail = field(default_factory=Trail)
    patience_s: float = float("inf")
    zone: str = ""

    @property
    def takes_any(self) -> bool:
        """Whether any group will do."""
        return self.model_revision is None and not self.avoid


class Selection:
    """Chooses among the groups and opens leases on them."""

    def __init__(
        self, groups: Groups, clock: Callable[[], float], draw: Callable[[], float], policy: Policy = place
    ) -> None:
        self.groups = groups
        self._clock = clock
        self._draw = draw
        self._policy = policy
        self._interactive_until = 0.0

    def would_take(self, wish: Wish) -> bool:
        """Whether ``choose`` would find a place now."""
        return bool(self._usable(wish))

    def choose(self, wish: Wish) -> Lease | None:
        """A place on the better of two groups, untried ones first; None when there is none now."""
        if wish.priority is Priority.INTERACTIVE:
            self._interactive_until = self._clock() + RECENT_S
        usable = self._usable(wish)
        if not usable:
            return None
        usable = self._of_drawn_version(usable, wish)
        accounts, affinity = self.groups.accounts, self.groups.affinity
        shares = [affinity.cached_share(group.key, wish.trail) for group in usable]
        candidates = [
            Candidate(
                accounts.in_flight(group.key),
                group.slots.stages,
                share > 0.0,
                bool(wish.zone) and group.route.zone == wish.zone,
            )
            for group, share in zip(usable, shares, strict=True)
        ]
        draws = (self._draw(), self._draw())
        chosen = self._policy(candidates, lambda index: self._price(usable[index], wish, shares[index]), draws)
        return self._lease(usable[chosen], wish, shares[chosen])

    def any_of(self, revision: str | None) -> bool:
        """Whether a group that takes requests, full or not, serves this model revision."""
        return any(group.model_revision == revision for group in self.groups.ready())

    def nearest(self, wishes: Sequence[Wish]) -> int:
        """Which of several wishes of one class finds most of its prompt at a group that is free; the first on a tie."""
        usable = self._usable(wishes[0]) if len(wishes) > 1 else []
        saved = [max((self._cached(group, wish) for group in usable), default=0.0) for wish in wishes]
        return saved.index(max(saved))

    def any_ready(self) -> bool:
        """Whether at least one group takes requests, full or not."""
        return bool(self.groups.ready())

    def _usable(self, wish: Wish) -> list[Group]:
        open_to_it = self._open_to(wish)
        left = open_to_it
        now = self._clock()
        if wish.avoid:
            untried = [group for group in open_to_it if group.key not in wish.avoid]
            left = untried or [group for group in open_to_it if wish.avoid[group.key] <= now]
        shares = ramps([now - group.ready_since for group in left])
        about = now < self._interactive_until
        return [
            group
            for group, share in zip(left, shares, strict=True)
            if self._has_room(group, wish.priority, share, interactive_about=about)
        ]

    def _open_to(self, wish: Wish) -> list[Group]:
        panic = self._panics()
        revision = wish.model_revision
        return [
            group
            for group in self.groups.unordered()
            if group.takes_requests(panic=panic) and (revision is None or group.model_revision == revision)
        ]

    def _panics(self) -> bool:
        suspected = sum(bool(group.suspicion) for group in self.groups.unordered())
        if not suspected:
            return False
        serving = [group for group in self.groups.unordered() if group.takes_requests(panic=True)]
        return panics(len(serving), sum(bool(group.suspicion) for group in serving))

    def _has_room(self, group: Group, priority: Priority, share: float, *, interactive_about: bool) -> bool:
        slots, accounts, key = group.slots, self.groups.accounts, group.key
        if not slots.running:
            return True
        in_flight = accounts.in_flight(key)
        if in_flight >= most_in_flight(slots, priority, interactive_about=interactive_about, ramp=share):
            return False
        ahead_s = accounts.prefill(key) / accounts.pace(key.pod).prefill
        return not prefill_full(ahead_s, in_flight, slots.stages, priority)

    def _of_drawn_version(self, usable: list[Group], wish: Wish) -> list[Group]:
        weights = self.groups.weights
        if not weights or wish.model_revision is not None:
            return usable
        drawn = version_for((group.version for group in usable), weights, self._draw())
        return [group for group in usable if drawn in (None, group.version)]

    def _price(self, group: Group, wish: Wish, share: float) -> Price:
        accounts, key = self.groups.accounts, group.key
        own = accounts.work(key)
        work = Work(own.prefill + group.foreign.prefill, own.blocks + group.foreign.blocks)
        cached = share * self.groups.affinity.trust(key) * wish.cost.prefill
        pace = accounts.pace(key.pod)
        return Price(seconds(work, wish.cost, cached, pace), seconds(_NOTHING, wish.cost, cached, pace))

    def _cached(self, group: Group, wish: Wish) -> float:
        affinity = self.groups.affinity
        return affinity.cached_share(group.key, wish.trail) * affinity.trust(group.key) * wish.cost.prefill

    def _lease(self, group: Group, wish: Wish, share: float) -> Lease:
        affinity = self.groups.affinity
        lease = Lease(
            self.groups.accounts.of(group.key, group.label),
            wish.cost,
            group.where,
            self.groups.changed,
            cached_share=share * affinity.trust(group.key),
            predicted_share=share,
            revision=group.model_revision,
            version=group.version,
            now=self._clock(),
        )
        said = group.document
        affinity.sent(group.key, wish.trail, said.kv_blocks * said.block_size if said else 0)
        return lease
