"""What the router says about itself: models, probes, metrics, and why each group is used or not."""

import time
from typing import Any

import msgspec
from aiohttp import web

from bireme_router.errors import NoRoute
from bireme_router.groups import Group, Groups
from bireme_router.metrics import RouterMetrics
from bireme_router.policies.eligible import why_not_ready
from bireme_router.proxy import Proxy
from bireme_router.stream import error_response

_JSON = {"content-type": "application/json"}


class Pages:
    """Handlers of the routes that the router answers itself."""

    def __init__(self, groups: Groups, metrics: RouterMetrics, proxy: Proxy) -> None:
        self._groups = groups
        self._metrics = metrics
        self._proxy = proxy
        self._started = int(time.time())

    async def livez(self, _request: web.Request) -> web.Response:
        """The process answers."""
        return web.Response(text="ok\n")

    async def readyz(self, _request: web.Request) -> web.Response:
        """200 while at least one group is ready and the router takes requests."""
        if self._proxy.draining:
            return web.Response(status=503, text="shutting down\n")
        ready = len(self._groups.ready())
        total = len(self._groups.all())
        return web.Response(status=200 if ready else 503, text=f"{ready} of {total} groups ready\n")

    async def metrics(self, _request: web.Request) -> web.Response:
        """Prometheus text."""
        return web.Response(body=self._metrics.page(), headers={"content-type": "text/plain; version=0.0.4"})

    async def models(self, _request: web.Request) -> web.Response:
        """Every name under which the model may be asked for."""
        return _json({"object": "list", "data": [self._model(name) for name in self._groups.models or ()]})

    async def model(self, request: web.Request) -> web.Response:
        """One of them."""
        name = request.match_info["name"]
        if name not in (self._groups.models or ()):
            return error_response(NoRoute(f"The model `{name}` does not exist", code="model_not_found"), "")
        return _json(self._model(name))

    async def groups(self, _request: web.Request) -> web.Response:
        """Each group as this router sees it."""
        return _json([self._group(group) for group in self._groups.all()])

    def _model(self, name: str) -> dict[str, Any]:
        return {"id": name, "object": "model", "created": self._started, "owned_by": "bireme"}

    def _group(self, group: Group) -> dict[str, Any]:
        standing = self._groups.standing(group)
        reason = why_not_ready(standing)
        return {
            "group": group.route.group,
            "index": group.route.index,
            "pod": group.route.pod,
            "incarnation": group.route.incarnation,
            "epoch": standing.key.epoch,
            "ready": not reason,
            "reason": reason,
            "state": standing.state,
            "model_revision": standing.model_revision,
            "in_flight": standing.in_flight,
            "outstanding_tokens": self._groups.accounts.outstanding(standing.key),
            "capacity": standing.capacity,
            "http": group.where.http,
            "said": group.document,
        }


def _json(value: object) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), headers=_JSON)
