"""PodGroups of the native scheduler: one for each making of a group, there before its pods and gone after them."""

import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from bireme.api.deployment import Spec
from bireme.names import Label
from bireme_operator.kube.client import Kube
from bireme_operator.kube.errors import AlreadyExists, Conflict, NotFound, Refused
from bireme_operator.kube.resources import POD_GROUPS
from bireme_operator.plan.actions import CreatePod
from bireme_operator.plan.providers import no_gangs
from bireme_operator.render.gang import ROLE, render_pod_group
from bireme_operator.render.owned import Object, Owner

log = logging.getLogger(__name__)


_TOPOLOGY_GATES: Final = "GenericWorkload=true,TopologyAwareWorkloadScheduling=true"
_SCHEDULED: Final = "PodGroupInitiallyScheduled"


class NoGangs(Refused):
    """This cluster keeps no native gangs; the message says what to turn on."""


@dataclass(frozen=True)
class PodGroups:
    """Those of one deployment. ``sees_nodes`` says whether Gates can place groups where they are no good."""

    kube: Kube
    owner: Owner
    sees_nodes: bool

    async def create(self, pods: Iterable[tuple[CreatePod, Spec]], *, dry_run: bool = False) -> None:
        """Make the PodGroups that these pods belong to, if they belong to any.

        Raises:
            NoGangs: the server serves none, or not the topology of one.
        """
        groups = [render_pod_group(made, self.owner, spec) for made, spec in pods]
        for name, manifest in {one["metadata"]["name"]: one for one in groups if one is not None}.items():
            try:
                made = await self.kube.create(manifest, dry_run=dry_run)
            except AlreadyExists:
                log.debug("PodGroup %s is there already", name)
            except NotFound:
                if await self.kube.serves(POD_GROUPS):
                    raise
                raise NoGangs(no_gangs("it serves no PodGroups", sees_nodes=self.sees_nodes)) from None
            else:
                self._refuse_half(manifest, made)

    async def ignored(self, makings: Collection[tuple[int, int]]) -> str:
        """Return why gangs are ignored here, if one of these makings (group, incarnation) shows it; else nothing.

        Each has a stage with a node and one that is refused. A scheduler that keeps gangs has spoken of such a group by
        then, whatever it said: it writes into the PodGroup whenever it has tried one.
        """
        half = _written(makings)
        for group in await self._list() if half else ():
            if _making(group) in half and not _is_heeded(group):
                without = f"without a word about PodGroup {group['metadata']['name']}"
                why = f"a stage was let onto a node and another refused, {without}"
                return no_gangs(why, sees_nodes=self.sees_nodes)
        return ""

    async def sweep(self, makings: Collection[tuple[int, int]]) -> None:
        """Delete those that none of the makings (group, incarnation) needs."""
        kept = _written(makings)
        for one in await self._list():
            if _making(one) not in kept:
                await self._delete(one["metadata"]["name"], one["metadata"]["uid"])

    async def _list(self) -> list[Object]:
        selector = f"{Label.DEPLOYMENT}={self.owner.name},{Label.ROLE}={ROLE}"
        try:
            return list((await self.kube.list(POD_GROUPS, self.owner.namespace, selector))["items"])
        except NotFound:
            return []

    def _refuse_half(self, asked: Object, made: Object) -> None:
        """A server without the feature gate drops the topology without a word."""
        if "schedulingConstraints" in asked["spec"] and not made["spec"].get("schedulingConstraints"):
            raise NoGangs(
                no_gangs("it drops the topology of PodGroups", gates=_TOPOLOGY_GATES, sees_nodes=self.sees_nodes)
            )

    async def _delete(self, name: str, uid: str) -> None:
        try:
            await self.kube.delete(POD_GROUPS, self.owner.namespace, name, uid=uid)
        except (NotFound, Conflict):
            return


def _written(makings: Collection[tuple[int, int]]) -> set[tuple[str, str]]:
    return {(str(group), str(incarnation)) for group, incarnation in makings}


def _making(group: Mapping[str, Any]) -> tuple[str, str]:
    labels = group["metadata"]["labels"]
    return labels.get(Label.GROUP_INDEX, ""), labels.get(Label.INCARNATION, "")


def _is_heeded(group: Mapping[str, Any]) -> bool:
    return any(one["type"] == _SCHEDULED for one in (group.get("status") or {}).get("conditions") or ())
