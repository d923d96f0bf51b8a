"""What the router says about itself: models, probes, metrics, the page, and why each group is used or not."""

import time
from importlib.resources import files
from typing import Any, Final

import msgspec
from aiohttp import web

from bireme_router.edge.history import History, state_of
from bireme_router.edge.traffic import traffic
from bireme_router.errors import NoRoute
from bireme_router.groups import Group, Groups
from bireme_router.merge import merge_routes
from bireme_router.metrics import RouterMetrics
from bireme_router.policies.cost import OUTPUT_GUESS, Cost, Work, seconds
from bireme_router.policies.eligible import why_not, why_not_ready
from bireme_router.proxy import Proxy
from bireme_router.siblings import METRICS, ROUTES, Siblings
from bireme_router.stream import error_response

_JSON = {"content-type": "application/json", "cache-control": "no-store"}
_PAGE_HEADERS: Final = {
    "content-type": "text/html; charset=utf-8",
    "cache-control": "no-cache",
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; frame-ancestors 'none'",
}
_TYPICAL: Final = Cost(prefill=512, decode=round(OUTPUT_GUESS))
"""The request by which the cost of each group is shown."""


class Pages:
    """Handlers of the routes that the router answers itself."""

    def __init__(
        self, groups: Groups, metrics: RouterMetrics, proxy: Proxy, history: History, siblings: Siblings
    ) -> None:
        self._siblings = siblings
        self._groups = groups
        self._metrics = metrics
        self._proxy = proxy
        self._history = history
        self._started = int(time.time())
        self._page = (files("bireme_router") / "page.html").read_bytes()

    async def page(self, _request: web.Request) -> web.Response:
        """The page for people; it asks ``routes`` by itself."""
        return web.Response(body=self._page, headers=_PAGE_HEADERS)

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
        """Prometheus text, of all processes."""
        others = await self._siblings.ask(METRICS)
        return web.Response(body=self._metrics.page(others), headers={"content-type": "text/plain; version=0.0.4"})

    async def models(self, _request: web.Request) -> web.Response:
        """Every name under which the model may be asked for."""
        return _json({"object": "list", "data": [self._model(name) for name in self._groups.models or ()]})

    async def model(self, request: web.Request) -> web.Response:
        """One of them."""
        name = request.match_info["name"]
        if name not in (self._groups.models or ()):
            return error_response(NoRoute(f"The model `{name}` does not exist", code="model_not_found"), "")
        return _json(self._model(name))

    async def routes(self, _request: web.Request) -> web.Response:
        """Each group as this router sees it, what happened lately, and totals."""
        others = [msgspec.json.decode(part) for part in await self._siblings.ask(ROUTES)]
        own = msgspec.json.decode(self.routes_part())
        return _json(merge_routes(own, others))

    def metrics_part(self) -> bytes:
        """What a sibling adds to its metrics."""
        return self._metrics.part()

    def routes_part(self) -> bytes:
        """What this process alone says at `/admin/routes`."""
        self._history.look()
        return msgspec.json.encode(
            {
                "v": 1,
                "at": time.time(),
                "started": self._started,
                "models": self._groups.models or (),
                "draining": self._proxy.draining,
                "open": self._proxy.open,
                "waiting": self._metrics.waiting,
                "traffic": traffic(self._metrics),
                "groups": [self._group(group) for group in self._groups.all()],
                "transitions": self._history.newest_first(),
            }
        )

    def _model(self, name: str) -> dict[str, Any]:
        # What every group takes, as vLLM's clients read it; null until one has said what it takes.
        contexts = [group.document.limits.context for group in self._groups.all() if group.document is not None]
        context = min(contexts, default=None)
        card = {"id": name, "object": "model", "created": self._started, "owned_by": "bireme"}
        return {**card, "root": (self._groups.models or (name,))[0], "max_model_len": context}

    def _group(self, group: Group) -> dict[str, Any]:
        standing = self._groups.standing(group)
        reason = why_not_ready(standing)
        return {
            "group": group.route.group,
            "index": group.route.index,
            "pod": group.route.pod,
            "zone": group.route.zone,
            "incarnation": group.route.incarnation,
            "epoch": standing.key.epoch,
            "ready": not reason,
            "used": not (reason or why_not(standing, None, standing.capacity)),
            "reason": reason or why_not(standing, None, standing.capacity),
            "state": state_of(group),
            "model_revision": standing.model_revision,
            "in_flight": standing.in_flight,
            "outstanding_tokens": self._groups.accounts.outstanding(standing.key),
            "capacity": standing.capacity,
            "http": group.where.http,
            "cost": self._cost(group),
            "said": group.document,
        }

    def _cost(self, group: Group) -> dict[str, float]:
        """What this router reckons with; ``typical_s``: how long a typical request would take if it went there now."""
        accounts = self._groups.accounts
        own, foreign = accounts.work(group.key), group.foreign
        work = Work(own.prefill + foreign.prefill, own.blocks + foreign.blocks)
        pace = accounts.pace(group.key.pod)
        return {
            "typical_s": round(seconds(work, _TYPICAL, 0.0, pace), 4),
            "prefill_tokens": round(work.prefill),
            "kv_blocks": round(work.blocks, 1),
            "prefill_tokens_per_s": round(pace.prefill, 1),
            "decode_block_tokens_per_s": round(pace.decode, 1),
        }


def _json(value: object) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), headers=_JSON)
