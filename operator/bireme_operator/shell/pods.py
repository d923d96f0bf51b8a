"""Carries out what a plan asks of pods. What could not be done is said, so that it is not remembered as done.

Creates run side by side; once a quota has refused one, groups are made one after another, and half a group is taken
back at once: it would hold devices for nothing.
"""

import asyncio
import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Final

from bireme.api.deployment import Spec
from bireme_operator.kube.client import Kube
from bireme_operator.kube.errors import AlreadyExists, Conflict, NotFound, QuotaExceeded
from bireme_operator.kube.resources import PODS
from bireme_operator.plan.actions import CreatePod, DeletePod, LiftGate
from bireme_operator.plan.places import HOSTNAME, Needs
from bireme_operator.render.gang import GATE
from bireme_operator.render.owned import Owner
from bireme_operator.render.pods import render_pod
from bireme_operator.shell.places import needs_of
from bireme_operator.shell.pod_groups import PodGroups
from bireme_operator.shell.store import Key, Store

log = logging.getLogger(__name__)

_AT_ONCE: Final = 16
QUOTA_RETRY_S: Final = 10.0


@dataclass
class PodWriter:
    """Makes and ends the pods of one deployment. ``without_quota`` has the server's words by group index.

    ``spec_of`` has the spec that a revision was made of, or the one that it is given.
    """

    kube: Kube
    store: Store
    owner: Owner
    image: str
    spec_of: Callable[[str, Spec], Spec]
    without_quota: dict[int, str] = field(default_factory=dict)
    _quota_again_at: float = 0.0

    def __post_init__(self) -> None:
        """Set up what belongs to it."""
        self.pod_groups = PodGroups(self.kube, self.owner)

    @property
    def key(self) -> Key:
        """Namespace and name of the deployment."""
        return self.owner.namespace, self.owner.name

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

    async def create(self, wanted: Sequence[CreatePod], spec: Spec, token_secret: str, now: float) -> list[str]:
        """Make pods; return the names of those that were not made."""
        if self.without_quota and now < self._quota_again_at:
            return [made.name for made in wanted]
        groups = [list(pods) for _, pods in groupby(wanted, key=lambda made: made.group)]
        limit = asyncio.Semaphore(1 if self.without_quota else _AT_ONCE)
        failed: list[str] = []

        async def make(pods: Sequence[CreatePod]) -> None:
            async with limit:
                failed.extend(await self._make_group(pods, spec, token_secret, now))

        await asyncio.gather(*(make(pods) for pods in groups))
        return failed

    async def lift(self, lifted: LiftGate) -> None:
        """Let a pod to the scheduler, for one node only. Gates of others stay."""
        record = next((r for r in self.store.pods(self.key, self.owner.uid) if r.view.name == lifted.pod), None)
        if record is None:
            return
        try:
            pod = await self.kube.get(PODS, self.owner.namespace, lifted.pod)
            gates = [gate for gate in pod["spec"].get("schedulingGates") or () if gate["name"] != GATE]
            spec = {"schedulingGates": gates or None, "nodeSelector": {HOSTNAME: lifted.hostname}}
            version = {"uid": record.uid, "resourceVersion": pod["metadata"]["resourceVersion"]}
            change = {"metadata": version, "spec": spec}
            self.store.see_pod(await self.kube.patch(PODS, self.owner.namespace, lifted.pod, change))
        except (NotFound, Conflict):
            return  # it is gone, or somebody else has just changed it: the next look tells

    def needs(self, made: CreatePod, spec: Spec, token_secret: str) -> Needs:
        """Return what a stage asks of its node."""
        return needs_of(self._manifest(made, spec, token_secret))

    async def end(self, ended: DeletePod) -> None:
        """Delete a pod if it is still the one that was seen."""
        record = next((r for r in self.store.pods(self.key, self.owner.uid) if r.view.name == ended.name), None)
        if record is None:
            return
        log.info("pod %s/%s is ended: %s", self.owner.namespace, ended.name, ended.why)
        await self._delete(ended.name, record.uid, math.ceil(ended.grace_s))

    def quota_due(self) -> float | None:
        """When groups without quota are tried again."""
        return self._quota_again_at if self.without_quota else None

    async def _make_group(self, pods: Sequence[CreatePod], spec: Spec, token_secret: str, now: float) -> Iterable[str]:
        group = pods[0].group
        answers: list[Mapping[str, Any]] = []
        await self.pod_groups.create((made, self.spec_of(made.revision, spec)) for made in pods)
        for made in pods:
            try:
                answers.append(await self.kube.create(self._manifest(made, spec, token_secret)))
            except AlreadyExists:
                log.info("pod %s/%s is there already", self.owner.namespace, made.name)
            except QuotaExceeded as error:
                self.without_quota[group] = str(error)
                self._quota_again_at = now + QUOTA_RETRY_S
                for answer in answers:
                    await self._delete(answer["metadata"]["name"], answer["metadata"]["uid"], 0)
                return [made.name for made in pods]
        self.without_quota.pop(group, None)
        for answer in answers:
            self.store.see_pod(answer)
        return []

    async def _delete(self, name: str, uid: str, grace_s: int) -> None:
        try:
            left = await self.kube.delete(PODS, self.owner.namespace, name, uid=uid, grace_s=grace_s)
        except (NotFound, Conflict):
            return  # it is gone, or another pod has its name
        if left.get("kind") == PODS.kind:
            self.store.see_pod(left)

    def _manifest(self, made: CreatePod, spec: Spec, token_secret: str) -> dict[str, Any]:
        spec = self.spec_of(made.revision, spec)
        return render_pod(made, self.owner, spec, image=self.image, token_secret=token_secret)
