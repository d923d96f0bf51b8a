"""The objects beside the pods: Service, tokens, router, routes. Applied when they differ from what was applied last.

Somebody may delete or change them behind our back: watches tell of that (see `Belongings`), and now and then all are
applied again. A name may be somebody else's already: what is not ours is never written to. So each is applied either to
the very object that is known as ours, by its uid, or only if there is none.
"""

import logging
from collections import deque
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

import msgspec

from bireme.api import InferenceDeployment
from bireme.api.deployment import Spec
from bireme.api.engine import EngineType
from bireme.names import KIND, Label
from bireme.wire.routes import Routes
from bireme_operator.kube.client import Kube
from bireme_operator.kube.errors import AlreadyExists, Conflict, NamespaceEnding, NotFound, Refused
from bireme_operator.kube.resources import CONFIG_MAPS, PODS, resource_of
from bireme_operator.render.endpoint import render_custom_endpoint
from bireme_operator.render.errors import InvalidTemplate
from bireme_operator.render.network import render_policy
from bireme_operator.render.owned import Object, Owner
from bireme_operator.render.router import ROUTER, ROUTES_MARK, mark_of, render_router, render_routes, routes_name
from bireme_operator.render.services import render_stages_service
from bireme_operator.render.spares import render_spare_secret
from bireme_operator.render.tokens import capacity, render_secret, secret_name
from bireme_operator.shell.belongings import Belongings, Place, holder_of, may_take, place_of
from bireme_operator.shell.errands import Errands
from bireme_operator.status import IN_THE_WAY

log = logging.getLogger(__name__)

_ROUTES_EVERY_S: Final = 0.25
_PER_ROUTE_S: Final = 0.005
"""Routers see pods by themselves; what is written here is what one that starts begins with."""
_ERRAND: Final = "routes"
_RETRY_S: Final = 5.0
"""Nobody tells when an object of somebody else's goes out of the way."""
HEALED_MOST: Final = 40
HEALED_WITHIN_S: Final = 20.0
"""So often what others changed is put right at once within this time; who changes more often is fought slowly."""


class InTheWay(Exception):
    """An object that is not ours has the name of one of ours; the message says whose it is and what to do.

    One that is ``passing`` was an earlier deployment's of this name, and is being collected: nobody has to do anything.
    """

    def __init__(self, message: str, *, passing: bool = False) -> None:
        super().__init__(message)
        self.passing = passing


@dataclass
class Children:
    """The objects of one deployment. ``highest`` is the highest group index that ever was."""

    kube: Kube
    owner: Owner
    belongings: Belongings
    master_key: bytes
    router_image: str
    errands: Errands
    highest: int = 0
    retry_at: float = float("inf")
    _settled: tuple[InferenceDeployment, str, int] | None = None
    _refusal: str = ""
    _waits: bool = False
    _healed: deque[float] = field(default_factory=lambda: deque(maxlen=HEALED_MOST))
    _done: set[Place] = field(default_factory=set)
    _routes: Routes | None = None
    _routes_made: bytes = b""
    _routes_refusal: str = ""
    _routes_wait: bool = False
    _refused_at: int = 0
    _routes_at: float = float("-inf")

    @property
    def token_secret(self) -> str:
        """Name of the Secret that has the token of every group."""
        return secret_name(self.owner, capacity(self.highest))

    def forget(self) -> None:
        """Apply everything again at the next chance."""
        self._done.clear()
        self._settled = None

    async def apply(self, deployment: InferenceDeployment, groups: Sequence[int], now: float) -> str:
        """Bring all objects but the routes to what is wanted; ``groups`` are those that exist or are to be.

        Return why the server does not take one of them as it is wanted, or nothing.
        """
        self.highest = max([self.highest, _highest(deployment.spec), *groups])
        if (now >= self.retry_at or not self._is_settled(deployment)) and not self._is_fought(deployment, now):
            settled = deployment, self.token_secret, self.belongings.changes(self._key)
            self._waits = False
            self._refusal = await self._apply_all(deployment.spec)
            self._settled = settled
            self.retry_at = now + _RETRY_S if self._waits else float("inf")
        return self._refusal or self._routes_refusal

    def _is_fought(self, deployment: InferenceDeployment, now: float) -> bool:
        """Whether somebody undoes again and again what is applied; then it waits, and each of the two has its turn."""
        known = self._settled
        if known is None or known[0] is not deployment or known[1] != self.token_secret or now >= self.retry_at:
            return False
        if self._may_heal(now):
            return False
        if self.retry_at == float("inf"):
            log.warning("somebody changes or deletes objects of %s/%s again and again", *self._key)
        self.retry_at = self._healed[0] + HEALED_WITHIN_S
        return True

    def _may_heal(self, now: float) -> bool:
        """Whether what others changed may be put right at once, and note that it is."""
        if len(self._healed) == HEALED_MOST and now < self._healed[0] + HEALED_WITHIN_S:
            return False
        self._healed.append(now)
        return True

    @property
    def _key(self) -> tuple[str, str]:
        return self.owner.namespace, self.owner.name

    def _is_settled(self, deployment: InferenceDeployment) -> bool:
        if self._settled is None or self._settled[0] is not deployment:
            return False
        return self._settled[1:] == (self.token_secret, self.belongings.changes(self._key))

    async def _apply_all(self, spec: Spec) -> str:
        """Apply each by itself, so that one that can't be had keeps no other from being there; return what is wrong."""
        secrets = [render_secret(self.owner, capacity(self.highest), self.master_key)]
        secrets += [render_spare_secret(self.owner, self.master_key)] if spec.spares else []
        told = [await self._refusal_of(self._create_once(secret)) for secret in secrets]
        stages = [render_stages_service(self.owner), render_policy(self.owner, spec)]
        told += [await self._refusal_of(self._apply(manifest)) for manifest in stages]
        try:
            told += [await self._refusal_of(self._apply(manifest)) for manifest in self._endpoint(spec)]
        except InvalidTemplate as error:
            told.append(str(error))
        return next(filter(None, told), "")

    async def _refusal_of(self, work: Awaitable[object]) -> str:
        try:
            await work
        except NamespaceEnding:
            raise
        except Refused as error:
            return str(error)
        except InTheWay as error:
            self._waits = True
            return "" if error.passing else str(error)
        return ""

    def _endpoint(self, spec: Spec) -> list[Object]:
        if spec.engine.type is EngineType.CUSTOM:
            return [render_custom_endpoint(self.owner, spec)]
        return render_router(self.owner, spec, image=self.router_image, token_secret=self.token_secret)

    def publish(self, routes: Routes | None, now: float) -> float | None:
        """Begin to tell the router its groups, if there is news and it is time; when to try again, if at all."""
        if routes is None:
            self._routes_refusal = ""
        if routes is None or _ERRAND in self.errands or (routes == self._routes and self._stands()):
            return None
        waits = self._routes_wait and self._refused_at == self.belongings.changes(self._key)
        pace = _RETRY_S if waits else _ROUTES_EVERY_S
        due = self._routes_at + max(pace, _PER_ROUTE_S * len(routes.groups))
        if now < due:
            return due
        if routes == self._routes and not self._may_heal(now):
            return self._healed[0] + HEALED_WITHIN_S
        self._routes_at = now
        self.errands.begin(_ERRAND, self._publish(routes))
        return None

    async def _publish(self, routes: Routes) -> None:
        self._refused_at = self.belongings.changes(self._key)
        try:
            self._routes_made = await self._apply(render_routes(self.owner, routes))
        except InTheWay as error:
            self._routes_refusal, self._routes_wait = "" if error.passing else str(error), True
            return
        self._routes, self._routes_refusal, self._routes_wait = routes, "", False
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

    def _stands(self) -> bool:
        return self._is_applied((CONFIG_MAPS.kind, self.owner.namespace, routes_name(self.owner)), self._routes_made)

    def _is_applied(self, place: Place, encoded: bytes) -> bool:
        return place in self._done and self.belongings.is_as_applied(place, encoded)

    async def _apply(self, manifest: Object) -> bytes:
        place, encoded = place_of(manifest), msgspec.json.encode(manifest)
        if not self._is_applied(place, encoded):
            self.belongings.applied(place, encoded, await self._apply_ours(manifest))
            self._done.add(place)
        return encoded

    async def _apply_ours(self, manifest: Object) -> Object:
        """Apply to the object that is ours, or make it.

        Raises:
            InTheWay: the name is somebody else's.
            Conflict: somebody writes it just now.
        """
        uid = self.belongings.uid(place_of(manifest), self.owner.uid)
        with suppress(Conflict):
            return await (self.kube.apply(manifest, uid=uid) if uid else self.kube.apply_anew(manifest))
        found = await self.kube.find(resource_of(manifest), self.owner.namespace, manifest["metadata"]["name"])
        if found is None:
            return await self.kube.apply_anew(manifest)
        if not may_take(self.owner, found, manifest):
            raise self._in_the_way(found, manifest)
        return await self.kube.apply(manifest, version=found["metadata"]["resourceVersion"])

    def _in_the_way(self, found: Object, manifest: Object) -> InTheWay:
        what = f"{manifest['kind']} {manifest['metadata']['name']}{IN_THE_WAY}"
        holder = holder_of(found)
        if holder is None:
            return InTheWay(f"{what}it is not this deployment's; delete it, or name the deployment otherwise")
        if (holder["kind"], holder["name"]) == (KIND, self.owner.name):
            return InTheWay(f"{what}it is an earlier deployment's of this name, and is being collected", passing=True)
        whose = f"{holder['kind']} {holder['name']}"
        return InTheWay(f"{what}it belongs to {whose}; delete that, or name the deployment otherwise")

    async def _create_once(self, manifest: Object) -> None:
        if place_of(manifest) in self._done:
            return
        try:
            await self.kube.create(manifest)
        except AlreadyExists:
            log.debug("Secret %s is there already", manifest["metadata"]["name"])
        self._done.add(place_of(manifest))


def _highest(spec: Spec) -> int:
    """Return the highest index that a group may get before anybody can see it: its token must be there first."""
    most = spec.replicas if spec.autoscaling is None else max(spec.replicas, spec.autoscaling.max_replicas)
    return most + spec.rollout.max_surge - 1
