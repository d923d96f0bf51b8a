"""Carries out what a plan asks of pods, beside the visits. What is under way is seen as done; what failed is said.

Creates run side by side; once a quota has refused one, groups are made one after another, and half a group is taken
back at once: it would hold devices for nothing. What replaces a lost part does not wait behind what is new.
"""

import asyncio
import logging
import math
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, Final

from bireme.api.deployment import Spec
from bireme.names import Env, Label
from bireme_operator.kube.client import Kube
from bireme_operator.kube.errors import AlreadyExists, Conflict, NotFound, QuotaExceeded
from bireme_operator.kube.resources import PODS
from bireme_operator.plan.actions import Action, AdoptSpare, CreatePod, DeletePod, LiftGate
from bireme_operator.plan.memory import GroupMemory
from bireme_operator.plan.observed import Phase, PodView
from bireme_operator.plan.places import HOSTNAME, Needs
from bireme_operator.render.avoid import avoiding
from bireme_operator.render.gang import GATE
from bireme_operator.render.owned import Owner
from bireme_operator.render.pods import render_pod
from bireme_operator.shell.errands import Errands
from bireme_operator.shell.places import needs_of
from bireme_operator.shell.pod_groups import PodGroups
from bireme_operator.shell.records import PodRecord
from bireme_operator.shell.store import Key, Store

log = logging.getLogger(__name__)

_AT_ONCE: Final = 8
"""A server that is busy answers no sooner for being asked more at once, and what is urgent waits among it."""
_FEW: Final = 32
"""More groups than so are looked at by a look at all."""
QUOTA_RETRY_S: Final = 10.0


def _slots() -> asyncio.Semaphore:
    return asyncio.Semaphore(_AT_ONCE)


@dataclass
class PodWriter:
    """Makes and ends the pods of one deployment. ``without_quota`` has the server's words by group index.

    ``spec_of`` has the spec that a revision was made of, or the one that it is given. ``astonished``: the server knew a
    pod that we did not, so our picture of the pods is to be drawn anew.
    """

    kube: Kube
    store: Store
    owner: Owner
    spec_of: Callable[[str, Spec], Spec]
    errands: Errands
    sees_nodes: bool = True
    without_quota: dict[int, str] = field(default_factory=dict)
    astonished: bool = False
    _quota_again_at: float = 0.0
    _making: dict[str, CreatePod] = field(default_factory=dict)
    _coming: dict[str, PodView] = field(default_factory=dict)
    _aims: dict[str, str] = field(default_factory=dict)
    _let_go: dict[str, tuple[PodView, PodView]] = field(default_factory=dict)
    _ending: dict[str, int] = field(default_factory=dict)
    _unmade: set[str] = field(default_factory=set)
    _new: asyncio.Semaphore = field(default_factory=_slots)
    _lost: asyncio.Semaphore = field(default_factory=_slots)
    _other: asyncio.Semaphore = field(default_factory=_slots)
    _one: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(1))

    def __post_init__(self) -> None:
        """Set up what belongs to it."""
        self.pod_groups = PodGroups(self.kube, self.owner, self.sees_nodes)

    @property
    def key(self) -> Key:
        """Namespace and name of the deployment."""
        return self.owner.namespace, self.owner.name

    @property
    def unsure(self) -> frozenset[str]:
        """The names of the pods that may not be there."""
        return frozenset(self._making) | self._unmade

    def take_unmade(self) -> frozenset[str]:
        """Return the names of the pods that could not be made, once."""
        unmade, self._unmade = frozenset(self._unmade), set()
        return unmade

    def as_wished(self, views: Sequence[PodView]) -> tuple[PodView, ...]:
        """Return the pods as they are once all that is under way is done. A group that is half made has no gates."""
        if not self._making and not self._aims:
            return tuple(views)
        seen = [self._aimed(view) for view in views if view.name not in self._making]
        return (*seen, *self._coming.values())

    async def look(self, groups: Collection[int] | None = None) -> None:
        """Read the pods live, all of them or those of a few groups."""
        selector = f"{Label.DEPLOYMENT}={self.owner.name},{Label.STAGE}"
        if groups is not None and len(groups) <= _FEW:
            selector += f",{Label.GROUP_INDEX} in ({','.join(map(str, sorted(groups)))})"
        else:
            groups = None
        version, pods = await self.kube.walk(PODS, self.owner.namespace, selector)
        self.store.replace_pods(self.key, pods, version, groups)

    def to_begin(self, actions: Iterable[Action]) -> list[Action]:
        """Return the actions but for the ends that are under way already."""
        return [one for one in actions if not isinstance(one, DeletePod) or not self.is_ending(one.name)]

    def doubtful(self, actions: Iterable[Action], known: Container[int]) -> set[int]:
        """Return the groups of which a plan would make or end a pod; of one that is not ``known`` there is none yet."""
        todo = self.to_begin(actions)
        made = {one.group for one in todo if isinstance(one, CreatePod | AdoptSpare) and one.group in known}
        ended = (self._record(one.name) for one in todo if isinstance(one, DeletePod))
        return made | {record.view.group for record in ended if record is not None}

    async def try_out(self, made: CreatePod, spec: Spec, token_secret: str) -> None:
        """Ask the server whether it would take this pod.

        Raises:
            Refused: it would not; the message has its words.
            InvalidTemplate: the template asks for what is ours.
        """
        try:
            await self.pod_groups.create([(made, spec)], dry_run=True)
            await self.kube.create(self._manifest(made, spec, token_secret), dry_run=True, strict=True)
        except (AlreadyExists, QuotaExceeded):
            return  # it was judged to be a pod, that is all we asked

    def create(self, wanted: Sequence[CreatePod], spec: Spec, token_secret: str, now: float) -> None:
        """Begin to make pods, each group as a whole."""
        if not wanted:
            return
        short = self.quota_is_short(now)
        begun = {view.group for view in self.store.views(self.key, self.owner.uid) if not view.deleting}
        groups = [(group, list(pods)) for group, pods in groupby(wanted, key=lambda made: made.group)]
        # What makes a group whole goes before what begins one, which would take the last of a quota in vain.
        for group, made in sorted(groups, key=lambda one: one[0] not in begun):
            if short and (group in self.without_quota or group not in begun):
                self._unmade |= {one.name for one in made}
            elif ("make", group) not in self.errands:
                self._making |= {one.name: one for one in made}
                self._coming |= {one.name: _coming(one) for one in made}
                self.errands.begin(("make", group), self._make(made, spec, token_secret, now))

    def lift(self, lifted: LiftGate) -> bool:
        """Begin to let a pod to the scheduler, for one node only; whether there is such a pod. Gates of others stay."""
        record = self._record(lifted.pod)
        if record is None or ("pod", lifted.pod) in self.errands:
            return False
        self._aims[lifted.pod] = lifted.hostname
        self.errands.begin(("pod", lifted.pod), self._lift(lifted, record.uid))
        return True

    def needs(self, made: CreatePod, spec: Spec, token_secret: str) -> Needs:
        """Return what a stage asks of its node."""
        pod = self._manifest(made, spec, token_secret)
        return needs_of(avoiding(pod, self.store.lures(self.key, pod["spec"]["tolerations"])))

    def end(self, ended: DeletePod) -> None:
        """Begin to delete a pod, if it is still the one that was seen."""
        record = self._record(ended.name)
        if record is None or ("pod", ended.name) in self.errands:
            return
        log.info("pod %s/%s is ended: %s", self.owner.namespace, ended.name, ended.why)
        self._ending[ended.name] = record.view.group
        self.errands.begin(("pod", ended.name), self._end(ended, record.uid))

    async def ended(self, group: int) -> None:
        """Wait until the ends of a group's pods have been asked for: a stage never has two that stay."""
        for name in [name for name, ending in self._ending.items() if ending == group]:
            await self.errands.finish(("pod", name))

    def quota_due(self, groups: Mapping[int, GroupMemory], now: float) -> float | None:
        """When groups without quota are tried again; those that are gone, or serve without, are forgotten."""
        waiting = {index for index, group in groups.items() if group.down_since is not None}
        self.without_quota = {group: words for group, words in self.without_quota.items() if group in waiting}
        return self._quota_again_at if self.quota_is_short(now) else None

    def quota_is_short(self, now: float) -> bool:
        """Whether a quota has refused pods a moment ago."""
        return bool(self.without_quota) and now < self._quota_again_at

    def is_ending(self, name: str) -> bool:
        """Whether the end of a pod is being asked for."""
        return ("pod", name) in self.errands and name not in self._aims

    def _record(self, name: str) -> PodRecord | None:
        return self.store.pod(self.key, self.owner.uid, name)

    def _aimed(self, view: PodView) -> PodView:
        """Return the view of a pod that is being let go, the very same one for as long as it is seen the same."""
        aim = self._aims.get(view.name)
        if aim is None:
            return view
        known = self._let_go.get(view.name)
        if known is None or known[0] is not view:
            known = self._let_go[view.name] = view, replace(view, gated=False, aim=aim)
        return known[1]

    async def _make(self, pods: Sequence[CreatePod], spec: Spec, token_secret: str, now: float) -> None:
        names = {made.name for made in pods}
        replaces = any(made.incarnation > 1 for made in pods)
        slots = self._one if self.without_quota else self._lost if replaces else self._new
        made = False
        try:
            await self.ended(pods[0].group)
            async with slots:
                made = await self._make_group(pods, spec, token_secret, now)
        finally:
            self._unmade |= set() if made else names
            for name in names:
                del self._making[name], self._coming[name]

    async def _make_group(self, pods: Sequence[CreatePod], spec: Spec, token_secret: str, now: float) -> bool:
        group = pods[0].group
        answers: list[Mapping[str, Any]] = []
        await self.pod_groups.create((made, self.spec_of(made.revision, spec)) for made in pods)
        for made in pods:
            try:
                pod = self._manifest(made, spec, token_secret)
                answers.append(await self.kube.create(self._kept_off(pod)))
            except AlreadyExists:
                log.info("pod %s/%s is there already", self.owner.namespace, made.name)
                self.astonished = True
            except QuotaExceeded as error:
                self.without_quota[group] = str(error)
                self._quota_again_at = now + QUOTA_RETRY_S
                for answer in answers:
                    await self._delete(answer["metadata"]["name"], answer["metadata"]["uid"], 0)
                return False
        self.without_quota.pop(group, None)
        for answer in answers:
            self.store.see_pod(answer)
        return True

    async def _lift(self, lifted: LiftGate, uid: str) -> None:
        """Take our gate out and nothing else: a strategic patch names it, so nobody else's change is overwritten."""
        gates = [{"$patch": "delete", "name": GATE}]
        change = {
            "metadata": {"uid": uid},
            "spec": {"schedulingGates": gates, "nodeSelector": {HOSTNAME: lifted.hostname}},
        }
        try:
            async with self._other:
                answer = await self.kube.patch_parts(PODS, self.owner.namespace, lifted.pod, change)
            self.store.see_pod(answer)
        except (NotFound, Conflict):
            return  # it is gone, or another pod has its name: the next look tells
        finally:
            del self._aims[lifted.pod]
            self._let_go.pop(lifted.pod, None)

    async def _end(self, ended: DeletePod, uid: str) -> None:
        try:
            async with self._other:
                await self._delete(ended.name, uid, math.ceil(ended.grace_s))
        finally:
            del self._ending[ended.name]

    async def _delete(self, name: str, uid: str, grace_s: int) -> None:
        try:
            left = await self.kube.delete(PODS, self.owner.namespace, name, uid=uid, grace_s=grace_s)
        except (NotFound, Conflict):
            return  # it is gone, or another pod has its name
        if left is not None:
            self.store.see_pod(left)

    def _kept_off(self, pod: dict[str, Any]) -> dict[str, Any]:
        """Keep a pod off nodes that ask it to leave; for one at our gate that is done when it gets its place."""
        if pod["spec"].get("schedulingGates"):
            return pod
        return avoiding(pod, self.store.lures(self.key, pod["spec"]["tolerations"]))

    def _manifest(self, made: CreatePod, spec: Spec, token_secret: str) -> dict[str, Any]:
        spec = self.spec_of(made.revision, spec)
        return render_pod(made, self.owner, spec, token_secret=token_secret)


def _coming(made: CreatePod) -> PodView:
    """A pod that is being made, as the planner sees one that waits for its node."""
    return PodView(
        name=made.name,
        group=made.group,
        stage=made.stage,
        incarnation=made.incarnation,
        revision=made.revision,
        model_revision=made.model_revision,
        phase=Phase.PENDING,
        address="",
        source=made.environment.get(Env.MODEL_PATH, ""),
    )
