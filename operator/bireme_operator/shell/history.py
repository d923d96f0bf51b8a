"""Keeps the renderings that groups were made of, as ControllerRevisions: what dies comes back as it was."""

import logging
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from bireme.api import InferenceDeployment
from bireme.api.deployment import Spec
from bireme.api.errors import InvalidDeployment
from bireme.names import Label
from bireme_operator.kube.client import Kube
from bireme_operator.kube.errors import AlreadyExists, Conflict, NotFound
from bireme_operator.kube.resources import REVISIONS
from bireme_operator.plan.rendering import Rendering
from bireme_operator.render.owned import Object, Owner
from bireme_operator.render.revisions import ROLE, read_revision, render_revision
from bireme_operator.shell.belongings import controller_of, may_take

log = logging.getLogger(__name__)

_KEPT: Final = 10
"""Renderings that nobody uses any more are kept up to this number, as a Deployment keeps its ReplicaSets."""


@dataclass(frozen=True)
class _Kept:
    uid: str
    number: int
    rendering: Rendering
    spec: Spec


@dataclass
class History:
    """The renderings of one deployment, by key, oldest first."""

    kube: Kube
    owner: Owner
    _kept: dict[str, _Kept] = field(default_factory=dict)
    _looked: bool = False
    _present: str = ""

    @property
    def renderings(self) -> dict[str, Rendering]:
        """All that are kept."""
        return {key: kept.rendering for key, kept in self._kept.items()}

    def spec_of(self, revision: str, otherwise: Spec) -> Spec:
        """Return the spec that pods of this revision are rendered from; ``otherwise`` is that of the present one.

        Where pods may run is no part of a rendering: the present placement holds for all that is made from now on.
        """
        if revision == self._present:
            return otherwise
        kept = next((kept.spec for kept in self._kept.values() if kept.rendering.revision == revision), otherwise)
        return kept.model_copy(update={"placement": otherwise.placement})

    async def keep(self, deployment: InferenceDeployment, used: Collection[str]) -> None:
        """Keep what is wanted now; forget the oldest that no revision of ``used`` needs."""
        if not self._looked:
            await self._look()
        wanted = Rendering.of(deployment.spec, deployment.model_name)
        self._present, key = wanted.revision, wanted.key
        highest = max((kept.number for kept in self._kept.values()), default=0)
        if key not in self._kept:
            await self._create(deployment, highest + 1)
        elif self._kept[key].number < highest:
            # Wanted again, it is the newest, so that the one before it is what was wanted before. It is made anew: the
            # server takes no change of a revision whose data it would write in another order.
            await self._delete(self._kept.pop(key), key)
            await self._create(deployment, highest + 1)
        needed = {name for name, kept in self._kept.items() if name in used or kept.rendering.revision in used} | {key}
        idle = [name for name in self._kept if name not in needed]
        for name in idle[: max(len(self._kept) - _KEPT, 0)]:
            await self._delete(self._kept.pop(name), name)

    async def _look(self) -> None:
        selector = f"{Label.DEPLOYMENT}={self.owner.name},{Label.ROLE}={ROLE}"
        found = await self.kube.list(REVISIONS, self.owner.namespace, selector)
        for body in sorted(found["items"], key=lambda one: int(one["revision"])):
            if any(one.get("uid") == self.owner.uid for one in body["metadata"].get("ownerReferences") or ()):
                self._take(body)
        self._looked = True

    async def _create(self, deployment: InferenceDeployment, number: int) -> None:
        manifest = render_revision(self.owner, deployment, number)
        try:
            self._take(await self.kube.create(manifest))
        except AlreadyExists:
            # Of an object of the same name that is being collected, or ours all the same: the next visit looks again.
            self._looked = False
            log.info("ControllerRevision %s is there already", manifest["metadata"]["name"])
            await self._clear(manifest)

    async def _clear(self, manifest: Object) -> None:
        """Delete what a deployment before this one has left for good: it was deleted without its own."""
        found = await self.kube.find(REVISIONS, self.owner.namespace, manifest["metadata"]["name"])
        if found is not None and not controller_of(found) and may_take(self.owner, found, manifest):
            with suppress(NotFound, Conflict):
                await self.kube.delete(
                    REVISIONS, self.owner.namespace, found["metadata"]["name"], uid=found["metadata"]["uid"]
                )

    def _take(self, body: Mapping[str, Any]) -> None:
        try:
            deployment = read_revision(self.owner, body)
        except InvalidDeployment as error:
            log.warning("ControllerRevision %s can't be read: %s", body["metadata"]["name"], error)
            return
        made = Rendering.of(deployment.spec, deployment.model_name)
        self._kept[made.key] = _Kept(body["metadata"]["uid"], int(body["revision"]), made, deployment.spec)

    async def _delete(self, kept: _Kept, key: str) -> None:
        try:
            name = f"{self.owner.name}-{key}"
            await self.kube.delete(REVISIONS, self.owner.namespace, name, uid=kept.uid)
        except (NotFound, Conflict):
            return
