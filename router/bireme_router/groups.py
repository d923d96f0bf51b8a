"""The router's picture of every group: its route, what its leader last said, and this router's own reasons against it.

One leader per group counts: the one with the highest incarnation in the routes. State comes from `/watch` only; a
document of another group or incarnation than the route names is not believed.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from bireme.wire.routes import Route, Routes
from bireme.wire.state import StateDocument
from bireme_router.accounts import Accounts, Lease, Whereabouts
from bireme_router.policies.abandonment import why_abandon
from bireme_router.policies.cost import Cost
from bireme_router.policies.eligible import Key, Standing, why_not, why_not_ready
from bireme_router.policies.two_choices import two_choices

log = logging.getLogger(__name__)

NOT_HEARD = "its /watch has not been heard yet"


@dataclass(frozen=True)
class Wish:
    """What a request needs. ``avoid``: targets that failed it, until when; ``model_revision`` None: any."""

    cost: Cost
    model_revision: str | None
    avoid: Mapping[Key, float]

    @property
    def takes_any(self) -> bool:
        """Whether any group will do."""
        return self.model_revision is None and not self.avoid


class Group:
    """One leader. ``unknown`` says why its state is not known, ``suspicion`` why this router distrusts it."""

    def __init__(self, route: Route, where: Whereabouts, now: float) -> None:
        self.route = route
        self.where = where
        self.document: StateDocument | None = None
        self.unknown = NOT_HEARD
        self.unknown_since = now
        self.epoch_since = now
        self.suspicion = ""

    @property
    def label(self) -> str:
        """The group's name in metrics: its index."""
        return str(self.route.index)

    @property
    def key(self) -> Key:
        """The target that the group is now."""
        return Key(self.route.pod, self.document.epoch if self.document else 0)

    def standing(self, in_flight: int) -> Standing:
        """The facts by which ``policies.eligible`` decides."""
        said = self.document
        return Standing(
            key=self.key,
            unknown=self.unknown,
            state=said.state if said else "",
            reason=(said.message or said.reason) if said else "",
            suspicion=self.suspicion,
            in_flight=in_flight,
            capacity=said.limits.running + said.limits.queue if said else 0,
            model_revision=said.model_revision if said else "",
        )


class Groups:
    """All groups. ``on_change`` runs whenever a waiting request may have become sendable."""

    def __init__(self, accounts: Accounts, clock: Callable[[], float], draw: Callable[[], float]) -> None:
        self.accounts = accounts
        self.models: tuple[str, ...] | None = None
        """Names that clients may use; None until routes are known."""
        self.on_change: Callable[[], None] = _nothing
        self._clock = clock
        self._draw = draw
        self._groups: dict[str, Group] = {}

    def all(self) -> list[Group]:
        """Every group, by index."""
        return sorted(self._groups.values(), key=lambda group: group.route.index)

    def standing(self, group: Group) -> Standing:
        """The facts about one group."""
        return group.standing(self.accounts.in_flight(group.key))

    def ready(self) -> list[Group]:
        """The groups that get requests."""
        return [group for group in self.all() if not why_not_ready(self.standing(group))]

    def apply(self, routes: Routes, tokens: Mapping[str, str]) -> None:
        """New routes: unchanged leaders keep their state, others start unknown. ``tokens`` by pod."""
        self.models = routes.models
        newest: dict[str, Route] = {}
        for route in routes.groups:
            if route.group not in newest or newest[route.group].incarnation < route.incarnation:
                newest[route.group] = route
        kept = {pod: group for pod, group in self._groups.items() if newest.get(group.route.group) == group.route}
        for route in newest.values():
            if route.pod not in kept:
                where = Whereabouts(str(route.index), route.http, tokens.get(route.pod, ""))
                kept[route.pod] = Group(route, where, self._clock())
        self._groups = kept
        self.on_change()

    def heard(self, route: Route, document: StateDocument) -> None:
        """A leader said what it knows."""
        group = self._current(route)
        if group is None:
            return
        if (document.group, document.incarnation) != (route.group, route.incarnation):
            said = f"group {document.group!r} incarnation {document.incarnation}"
            self.silent(route, f"{route.admin} answers as {said}, the routes say {route.group!r} {route.incarnation}")
            return
        before = why_not_ready(self.standing(group))
        if group.document is None or group.document.epoch != document.epoch:
            group.epoch_since = self._clock()
        group.document, group.unknown, group.suspicion = document, "", ""
        self._report(group, before)

    def silent(self, route: Route, reason: str) -> None:
        """A leader's watch ended or says nothing."""
        group = self._current(route)
        if group is None:
            return
        before = why_not_ready(self.standing(group))
        if not group.unknown:
            group.unknown_since = self._clock()
        group.unknown = reason
        self._report(group, before)

    def suspect(self, key: Key, reason: str) -> None:
        """A request failed there: no more go there until the leader says something new."""
        group = self._groups.get(key.pod)
        if group is None or group.key != key or group.suspicion:
            return
        before = why_not_ready(self.standing(group))
        group.suspicion = reason
        self._report(group, before)

    def would_take(self, wish: Wish) -> bool:
        """Whether ``choose`` would find a place now."""
        return bool(self._candidates(wish))

    def choose(self, wish: Wish) -> Lease | None:
        """A place on the better of two groups, untried ones first; None when there is none now."""
        candidates = self._candidates(wish)
        if not candidates:
            return None
        loads = [self.accounts.outstanding(group.key) for group in candidates]
        group = candidates[two_choices(loads, (self._draw(), self._draw()))]
        return Lease(self.accounts.of(group.key, group.label), wish.cost, group.where, self._released)

    def abandon_lost(self) -> None:
        """End the streams that only look alive, and forget accounts that nothing uses."""
        now = self._clock()
        for lease in self.accounts.leases():
            if reason := self._why_abandon(lease, now):
                lease.abandon(reason)
        self.accounts.forget_idle(but={group.key for group in self._groups.values()})

    def promises(self) -> list[float]:
        """When the groups say that they will be back, seconds."""
        return [group.document.retry_after_s for group in self._groups.values() if group.document]

    def _candidates(self, wish: Wish) -> list[Group]:
        fits = [group for group in self._groups.values() if not why_not(self.standing(group), wish.model_revision)]
        untried = [group for group in fits if group.key not in wish.avoid]
        now = self._clock()
        return untried or [group for group in fits if wish.avoid[group.key] <= now]

    def _why_abandon(self, lease: Lease, now: float) -> str:
        group = self._groups.get(lease.key.pod)
        if group is None:
            return ""  # gone from the routes: it finishes or hands over, and its connection tells
        return why_abandon(
            superseded_for_s=now - group.epoch_since if group.key != lease.key else 0.0,
            unknown_for_s=now - group.unknown_since if group.unknown else 0.0,
            quiet_for_s=now - lease.touched,
        )

    def _current(self, route: Route) -> Group | None:
        group = self._groups.get(route.pod)
        return group if group is not None and group.route == route else None

    def _released(self) -> None:
        self.on_change()

    def _report(self, group: Group, before: str) -> None:
        after = why_not_ready(self.standing(group))
        if bool(after) != bool(before) or (after and before == NOT_HEARD):
            epoch = group.document.epoch if group.document else 0
            log.info("group %s (%s, epoch %d): %s", group.label, group.route.pod, epoch, after or "ready")
        self.on_change()


def _nothing() -> None:
    """Nobody waits yet."""
