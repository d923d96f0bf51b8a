"""The objects beside the pods: Service, tokens, router, routes. Applied when they differ from what was applied last.

Somebody may delete or change them behind our back, so now and then all are applied again.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from bireme.api import InferenceDeployment
from bireme.api.deployment import Spec
from bireme.api.engine import EngineType
from bireme.names import Label
from bireme.wire.routes import Routes
from bireme_operator.kube.client import Kube
from bireme_operator.kube.errors import AlreadyExists, NamespaceEnding, NotFound, Refused
from bireme_operator.kube.resources import PODS
from bireme_operator.render.endpoint import render_custom_endpoint
from bireme_operator.render.errors import InvalidTemplate
from bireme_operator.render.network import render_policy
from bireme_operator.render.owned import Object, Owner
from bireme_operator.render.router import ROUTER, ROUTES_MARK, mark_of, render_router, render_routes
from bireme_operator.render.services import render_stages_service
from bireme_operator.render.spares import render_spare_secret
from bireme_operator.render.tokens import capacity, render_secret, secret_name
from bireme_operator.shell.errands import Errands

log = logging.getLogger(__name__)

_ROUTES_EVERY_S: Final = 0.25
_PER_ROUTE_S: Final = 0.005
"""Routers see pods by themselves; what is written here is what one that starts begins with."""
_ERRAND: Final = "routes"


@dataclass
class Children:
    """The objects of one deployment. ``highest`` is the highest group index that ever was."""

    kube: Kube
    owner: Owner
    master_key: bytes
    router_image: str
    errands: Errands
    highest: int = 0
    _settled: tuple[InferenceDeployment, str, str] | None = None
    _applied: dict[tuple[str, str], bytes] = field(default_factory=dict)
    _routes: Routes | None = None
    _routes_at: float = float("-inf")

    @property
    def token_secret(self) -> str:
        """Name of the Secret that has the token of every group."""
        return secret_name(self.owner, capacity(self.highest))

    def forget(self) -> None:
        """Apply everything again at the next chance."""
        self._applied.clear()
        self._routes = None
        self._settled = None

    async def apply(self, deployment: InferenceDeployment, groups: Sequence[int]) -> str:
        """Bring all objects but the routes to what is wanted; ``groups`` are those that exist or are to be.

        Return why the server does not take one of them as it is wanted, or nothing.
        """
        self.highest = max([self.highest, _highest(deployment.spec), *groups])
        if self._settled is not None and self._settled[0] is deployment and self._settled[1] == self.token_secret:
            return self._settled[2]
        refusal = await self._apply_all(deployment)
        self._settled = deployment, self.token_secret, refusal
        return refusal

    async def _apply_all(self, deployment: InferenceDeployment) -> str:
        try:
            await self._create_once(render_secret(self.owner, capacity(self.highest), self.master_key))
            if deployment.spec.spares:
                await self._create_once(render_spare_secret(self.owner, self.master_key))
            await self._apply(render_stages_service(self.owner))
            await self._apply(render_policy(self.owner, deployment.spec))
            for manifest in self._endpoint(deployment.spec):
                await self._apply(manifest)
        except NamespaceEnding:
            raise
        except (Refused, InvalidTemplate) as error:
            return str(error)
        return ""

    def _endpoint(self, spec: Spec) -> list[Object]:
        if spec.engine.type is EngineType.CUSTOM:
            return [render_custom_endpoint(self.owner, spec)]
        return render_router(self.owner, spec, image=self.router_image, token_secret=self.token_secret)

    def publish(self, routes: Routes | None, now: float) -> float | None:
        """Begin to tell the router its groups, if there is news and it is time; when to try again, if at all."""
        if routes is None or routes == self._routes or _ERRAND in self.errands:
            return None
        due = self._routes_at + max(_ROUTES_EVERY_S, _PER_ROUTE_S * len(routes.groups))
        if now < due:
            return due
        self._routes_at = now
        self.errands.begin(_ERRAND, self._publish(routes))
        return None

    async def _publish(self, routes: Routes) -> None:
        await self._apply(render_routes(self.owner, routes))
        self._routes = routes
        await self._mark_routers(mark_of(routes))

    async def _mark_routers(self, mark: str) -> None:
        """Make the kubelets of the router's pods look at the routes now, not in a minute."""
        selector = f"{Label.DEPLOYMENT}={self.owner.name},{Label.ROLE}={ROUTER}"
        found = await self.kube.list(PODS, self.owner.namespace, selector)
        for pod in found["items"]:
            change = {"metadata": {"uid": pod["metadata"]["uid"], "annotations": {ROUTES_MARK: mark}}}
            try:
                await self.kube.patch(PODS, self.owner.namespace, pod["metadata"]["name"], change)
            except NotFound:
                log.debug("router pod %s is gone", pod["metadata"]["name"])

    async def _apply(self, manifest: Object) -> None:
        key = manifest["kind"], manifest["metadata"]["name"]
        encoded = msgspec.json.encode(manifest)
        if self._applied.get(key) != encoded:
            await self.kube.apply(manifest)
            self._applied[key] = encoded

    async def _create_once(self, manifest: Object) -> None:
        key = manifest["kind"], manifest["metadata"]["name"]
        if key in self._applied:
            return
        try:
            await self.kube.create(manifest)
        except AlreadyExists:
            log.debug("Secret %s is there already", manifest["metadata"]["name"])
        self._applied[key] = b""


def _highest(spec: Spec) -> int:
    """Return the highest index that a group may get before anybody can see it: its token must be there first."""
    most = spec.replicas if spec.autoscaling is None else max(spec.replicas, spec.autoscaling.max_replicas)
    return most + spec.rollout.max_surge - 1
