"""The router's picture of every group: its route, what its leader last said, and this router's own reasons against it.

One leader per group counts: the one with the highest incarnation in the routes. State comes from `/watch` only; a
document of another group or incarnation than the route names is not believed. Who gets a request is decided in
``selection``.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from bireme.wire.routes import Route, Routes, version
from bireme.wire.state import StateDocument
from bireme_router.accounts import Accounts, Lease, Whereabouts
from bireme_router.affinity import Affinity
from bireme_router.policies.abandonment import why_abandon
from bireme_router.policies.concurrency import Slots
from bireme_router.policies.cost import Work
from bireme_router.policies.eligible import Key, Standing, takes_requests, why_not_ready
from bireme_router.policies.foreign import corrected
from bireme_router.policies.readiness import why_pod_not

log = logging.getLogger(__name__)

NOT_HEARD = "its /watch has not been heard yet"


@dataclass(frozen=True)
class PodStanding:
    """What the cluster says of a leader's pod; without a cluster nothing is against it."""

    ready: bool = True
    leaving: bool = False


class Group:
    """One leader. ``unknown`` says why its state is not known, ``suspicion`` why this router distrusts it."""

    def __init__(self, route: Route, where: Whereabouts, now: float) -> None:
        self.route = route
        self.where = where
        self.document: StateDocument | None = None
        self.key = Key(route.pod, 0)
        """The target that the group is now."""
        self.slots = Slots(0, 0, 1)
        """What its leader takes at the same time."""
        self.unknown = NOT_HEARD
        self.unknown_since = now
        self.epoch_since = now
        self.suspicion = ""
        self.pod = PodStanding()
        """What the cluster says of its pod."""
        self.against = ""
        """Why that speaks against it."""
        self.unready_since = now
        self.serving_since = now
        self.ready_since = now
        self.foreign = Work(0, 0.0)
        """Work that the leader told of and this router did not send: that of other routers and clients."""
        self.corrected_at = now

    @property
    def label(self) -> str:
        """The group's name in metrics: its index."""
        return str(self.route.index)

    @property
    def model_revision(self) -> str:
        """Whose weights answer there."""
        return self.document.model_revision if self.document else ""

    @property
    def version(self) -> str:
        """The rendering of its pods and the checkpoint, by which a canary is told from the others."""
        return version(self.document.revision, self.document.model_revision) if self.document else ""

    def take(self, said: StateDocument, now: float) -> None:
        """What its leader said last; whatever this router had against the group is past."""
        if self.unknown or self.document is None or self.document.state != said.state:
            self.serving_since = now
        self.document, self.unknown, self.suspicion = said, "", ""
        self.key = Key(self.route.pod, said.epoch)
        self.slots = Slots(said.limits.running, said.limits.queue, max(len(said.stages), 1))

    def takes_requests(self, *, panic: bool) -> bool:
        """Whether it may be used, full or not."""
        state = self.document.state if self.document else ""
        return takes_requests(self.unknown, state, self.against or ("" if panic else self.suspicion))

    def judge_pod(self, now: float) -> None:
        """Weigh its leader's word against its pod's standing."""
        unready_for_s = None if self.pod.ready else now - self.unready_since
        self.against = why_pod_not(
            leaving=self.pod.leaving, unready_for_s=unready_for_s, serving_for_s=now - self.serving_since
        )

    def standing(self, in_flight: int) -> Standing:
        """The facts by which ``policies.eligible`` decides."""
        said = self.document
        return Standing(
            key=self.key,
            unknown=self.unknown,
            state=said.state if said else "",
            reason=(said.message or said.reason) if said else "",
            suspicion=self.against or self.suspicion,
            in_flight=in_flight,
            capacity=said.limits.running + said.limits.queue if said else 0,
            model_revision=self.model_revision,
        )


class Groups:
    """All groups. ``on_change`` runs whenever a waiting request may have become sendable."""

    def __init__(self, accounts: Accounts, clock: Callable[[], float]) -> None:
        self.accounts = accounts
        self.affinity = Affinity()
        self.models: tuple[str, ...] | None = None
        """Names that clients may use; None until routes are known."""
        self.weights: Mapping[str, int] = {}
        """Shares of new requests by version, during a canary."""
        self.on_change: Callable[[], None] = _nothing
        self._clock = clock
        self._groups: dict[str, Group] = {}

    def all(self) -> list[Group]:
        """Every group, by index."""
        return sorted(self._groups.values(), key=lambda group: group.route.index)

    def unordered(self) -> Iterable[Group]:
        """Every group, without the sorting."""
        return self._groups.values()

    def standing(self, group: Group) -> Standing:
        """The facts about one group."""
        return group.standing(self.accounts.in_flight(group.key))

    def ready(self) -> list[Group]:
        """The groups that get requests."""
        return [group for group in self.all() if not why_not_ready(self.standing(group))]

    def apply(self, routes: Routes, tokens: Mapping[str, str]) -> None:
        """New routes: unchanged leaders keep their state, others start unknown. ``tokens`` by pod."""
        self.models, self.weights = routes.models, routes.weights
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

    def pods(self, standings: Mapping[str, PodStanding]) -> None:
        """What the cluster says of the pods, by name; of one that is not named nothing is known."""
        for pod, group in self._groups.items():
            now, standing = standings.get(pod, PodStanding()), group.pod
            if standing.ready and not now.ready:
                group.unready_since = self._clock()
            group.pod = now
        self.judge_pods()

    def judge_pods(self) -> None:
        """Weigh leaders' words against their pods' standing, anew as time passes."""
        for group in self._groups.values():
            before = why_not_ready(self.standing(group))
            group.judge_pod(self._clock())
            if why_not_ready(self.standing(group)) != before:
                self._report(group, before)

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
        group.take(document, self._clock())
        self._correct(group, document)
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

    def abandon_lost(self) -> None:
        """End the streams that only look alive, and forget accounts that nothing uses."""
        now = self._clock()
        self.judge_pods()
        for lease in self.accounts.leases():
            if reason := self._why_abandon(lease, now):
                lease.abandon(reason)
        current = {group.key for group in self._groups.values()}
        self.accounts.forget_idle(but=current)
        self.accounts.measure()
        self.affinity.forget_all(but=current)

    def changed(self) -> None:
        """A place has become free."""
        self.on_change()

    def promises(self) -> list[float]:
        """When the groups say that they will be back, seconds."""
        return [group.document.retry_after_s for group in self._groups.values() if group.document]

    def _correct(self, group: Group, said: StateDocument) -> None:
        now, own = self._clock(), self.accounts.work(group.key)
        others = max(said.running + said.waiting - self.accounts.in_flight(group.key), 0)
        foreign = Work(max(said.queued_prefill_tokens - own.prefill, 0), others * self.accounts.mean_blocks())
        group.foreign = corrected(group.foreign, foreign, now - group.corrected_at)
        group.corrected_at = now

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

    def _report(self, group: Group, before: str) -> None:
        after = why_not_ready(self.standing(group))
        if before and not after:
            group.ready_since = self._clock()
        if bool(after) != bool(before) or (after and before == NOT_HEARD):
            epoch = group.document.epoch if group.document else 0
            log.info("group %s (%s, epoch %d): %s", group.label, group.route.pod, epoch, after or "ready")
        self.on_change()


def _nothing() -> None:
    """Nobody waits yet."""
