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
from bireme_operator.kube.errors import AlreadyExists, NotFound, QuotaExceeded, Refused
from bireme_operator.kube.resources import PODS
from bireme_operator.render.endpoint import render_custom_endpoint
from bireme_operator.render.errors import InvalidTemplate
from bireme_operator.render.network import render_policy
from bireme_operator.render.owned import Object, Owner
from bireme_operator.render.router import ROUTER, ROUTES_MARK, mark_of, render_router, render_routes
from bireme_operator.render.services import render_stages_service
from bireme_operator.render.tokens import capacity, render_secret, secret_name

log = logging.getLogger(__name__)

_ROUTES_EVERY_S: Final = 0.25


@dataclass
class Children:
    """The objects of one deployment. ``highest`` is the highest group index that ever was."""

    kube: Kube
    owner: Owner
    master_key: bytes
    router_image: str
    highest: int = 0
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

    async def apply(self, deployment: InferenceDeployment, groups: Sequence[int]) -> str:
        """Bring all objects but the routes to what is wanted; ``groups`` are those that exist or are to be.

        Return why the server does not take the endpoint as it is wanted, or nothing.
        """
        self.highest = max([self.highest, deployment.spec.replicas - 1, *groups])
        await self._create_once(render_secret(self.owner, capacity(self.highest), self.master_key))
        await self._apply(render_stages_service(self.owner))
        await self._apply(render_policy(self.owner, deployment.spec))
        try:
            for manifest in self._endpoint(deployment.spec):
                await self._apply(manifest)
        except QuotaExceeded:
            raise
        except (Refused, InvalidTemplate) as error:
            return str(error)
        return ""

    def _endpoint(self, spec: Spec) -> list[Object]:
        if spec.engine.type is EngineType.CUSTOM:
            return [render_custom_endpoint(self.owner, spec)]
        return render_router(self.owner, spec, image=self.router_image, token_secret=self.token_secret)

    async def publish(self, routes: Routes | None, now: float) -> float | None:
        """Tell the router its groups, at most every quarter of a second; when it should be tried again, if at all."""
        if routes is None or routes == self._routes:
            return None
        if now - self._routes_at < _ROUTES_EVERY_S:
            return self._routes_at + _ROUTES_EVERY_S
        await self._apply(render_routes(self.owner, routes))
        self._routes, self._routes_at = routes, now
        await self._mark_routers(mark_of(routes))
        return None

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
