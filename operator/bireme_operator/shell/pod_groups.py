"""PodGroups of the native scheduler: one for each making of a group, there before its pods and gone after them."""

import logging
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from bireme.api.deployment import Spec
from bireme.names import Label
from bireme_operator.kube.client import Kube
from bireme_operator.kube.errors import AlreadyExists, Conflict, NotFound, Refused
from bireme_operator.kube.resources import POD_GROUPS
from bireme_operator.plan.actions import CreatePod
from bireme_operator.render.gang import ROLE, render_pod_group
from bireme_operator.render.owned import Object, Owner

log = logging.getLogger(__name__)


def _refuse_half(asked: Object, made: Object) -> None:
    """A server without the feature gate drops the topology without a word."""
    if "schedulingConstraints" in asked["spec"] and not made["spec"].get("schedulingConstraints"):
        raise Refused("the scheduler keeps no topology for PodGroups here; set placement.scheduler to Gates")


@dataclass(frozen=True)
class PodGroups:
    """Those of one deployment."""

    kube: Kube
    owner: Owner

    async def create(self, pods: Iterable[tuple[CreatePod, Spec]], *, dry_run: bool = False) -> None:
        """Make the PodGroups that these pods belong to, if they belong to any.

        Raises:
            Refused: the server serves none; the message says what to do.
        """
        groups = [render_pod_group(made, self.owner, spec) for made, spec in pods]
        for name, manifest in {one["metadata"]["name"]: one for one in groups if one is not None}.items():
            try:
                made = await self.kube.create(manifest, dry_run=dry_run)
            except AlreadyExists:
                log.debug("PodGroup %s is there already", name)
            except NotFound:
                raise Refused(
                    "placement.scheduler Native needs Kubernetes 1.37 with the feature gate GenericWorkload and the "
                    "API scheduling.k8s.io/v1beta1; turn them on or set it to Gates"
                ) from None
            else:
                _refuse_half(manifest, made)

    async def sweep(self, makings: Collection[tuple[int, int]]) -> None:
        """Delete those that none of the makings (group, incarnation) needs."""
        selector = f"{Label.DEPLOYMENT}={self.owner.name},{Label.ROLE}={ROLE}"
        try:
            found = await self.kube.list(POD_GROUPS, self.owner.namespace, selector)
        except NotFound:
            return
        kept = {(str(group), str(incarnation)) for group, incarnation in makings}
        for one in found["items"]:
            meta = one["metadata"]
            making = meta["labels"].get(Label.GROUP_INDEX), meta["labels"].get(Label.INCARNATION)
            if making not in kept:
                await self._delete(meta["name"], meta["uid"])

    async def _delete(self, name: str, uid: str) -> None:
        try:
            await self.kube.delete(POD_GROUPS, self.owner.namespace, name, uid=uid)
        except (NotFound, Conflict):
            return
