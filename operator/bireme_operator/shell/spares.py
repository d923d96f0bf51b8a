"""Makes, ends and adopts the standby pods of one deployment. What could not be adopted is said."""

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from bireme.api.deployment import Spec
from bireme_operator.kube.client import Kube
from bireme_operator.kube.errors import AlreadyExists, Conflict, KubeError, NotFound
from bireme_operator.kube.resources import PODS
from bireme_operator.plan.actions import Action, AdoptSpare, CreateSpare, EndSpare
from bireme_operator.render.avoid import avoiding
from bireme_operator.render.owned import Owner
from bireme_operator.render.spares import adoption, render_spare
from bireme_operator.shell.store import Store

log = logging.getLogger(__name__)

_RETRY_S: Final = 30.0
_GRACE_S: Final = 5


@dataclass
class Spares:
    """See the module."""

    kube: Kube
    store: Store
    owner: Owner
    clock: Callable[[], float]
    _again_at: float = 0.0

    @property
    def refused(self) -> bool:
        """Whether there was no room for another one, a moment ago."""
        return self.clock() < self._again_at

    async def carry_out(
        self, actions: Sequence[Action], spec: Spec, ended: Callable[[int], Awaitable[None]]
    ) -> list[str]:
        """Do what concerns spares; return the names of those that could not be adopted.

        ``ended`` waits until those of a group whose place they take have been ended.
        """
        lost: list[str] = []
        for action in actions:
            match action:
                case AdoptSpare():
                    await ended(action.group)
                    lost += [] if await self._adopt(action) else [action.name]
                case EndSpare():
                    await self._end(action)
                case CreateSpare():
                    await self._create(action, spec)
        return lost

    async def _adopt(self, adopted: AdoptSpare) -> bool:
        record = self.store.pod((self.owner.namespace, self.owner.name), self.owner.uid, adopted.name)
        if record is None:
            return False
        log.info("pod %s/%s becomes stage %d of group %d", self.owner.namespace, record.view.name, *_place(adopted))
        change = {"metadata": {"uid": record.uid, "labels": adoption(adopted)}}
        try:
            self.store.see_pod(await self.kube.patch(PODS, self.owner.namespace, adopted.name, change))
        except (NotFound, Conflict):
            return False  # it is gone, or another pod has its name
        return True

    async def _create(self, made: CreateSpare, spec: Spec) -> None:
        try:
            pod = render_spare(made, self.owner, spec)
            lures = self.store.lures((self.owner.namespace, self.owner.name), pod["spec"]["tolerations"])
            self.store.see_pod(await self.kube.create(avoiding(pod, lures)))
        except AlreadyExists:
            log.info("pod %s/%s is there already", self.owner.namespace, made.name)
        except KubeError as error:
            # A deployment does without; what it can't do without is not to wait for this.
            self._again_at = self.clock() + _RETRY_S
            log.warning("no spare for %s/%s: %s", self.owner.namespace, self.owner.name, error)

    async def _end(self, ended: EndSpare) -> None:
        record = self.store.pod((self.owner.namespace, self.owner.name), self.owner.uid, ended.name)
        if record is None:
            return
        log.info("pod %s/%s is ended: %s", self.owner.namespace, ended.name, ended.why)
        try:
            left = await self.kube.delete(PODS, self.owner.namespace, ended.name, uid=record.uid, grace_s=_GRACE_S)
        except KubeError as error:
            log.info("spare %s/%s is ended at another look: %s", self.owner.namespace, ended.name, error)
            return
        if left is not None:
            self.store.see_pod(left)


def _place(adopted: AdoptSpare) -> tuple[int, int]:
    return adopted.stage, adopted.group
