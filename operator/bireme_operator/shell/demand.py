"""Asks the routers of a deployment how much they have to do, for as long as it scales itself by that.

A router that can't be read is left out once; when none can be read nothing is known, and nothing is decided.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any, Final

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from bireme.api.router import Router
from bireme.names import Metric
from bireme_operator.kube.client import Kube
from bireme_operator.kube.errors import KubeError
from bireme_operator.plan.demand import Counts, Demand, demand_of
from bireme_operator.render.owned import Owner
from bireme_operator.shell.router_pages import Unread, read_router, router_pods

log = logging.getLogger(__name__)

EVERY_S: Final = 1.0
_MINUTE: Final = 60
"""Looks in a minute."""
_PATIENCE_S: Final = 3.0
_PODS_EVERY: Final = 5
"""Looks with the same list of routers."""


class DemandReader:
    """``demand`` is what was heard last. ``changed`` is called when it differs."""

    def __init__(self, kube: Kube, owner: Owner, session: aiohttp.ClientSession, changed: Callable[[], None]) -> None:
        self._kube = kube
        self._owner = owner
        self._session = session
        self._changed = changed
        self._router: Router | None = None
        self._task: asyncio.Task[None] | None = None
        self.demand: Demand | None = None

    def read(self, router: Router | None) -> None:
        """Read from now on, or not any more."""
        if router == self._router:
            return
        self._router, self.demand = router, None
        if self._task is not None:
            self._task.cancel()
        self._task = None if router is None else asyncio.get_running_loop().create_task(self._run(router))

    async def close(self) -> None:
        """End it."""
        task, self._router, self._task = self._task, None, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _run(self, router: Router) -> None:
        past: deque[Mapping[str, Counts]] = deque(maxlen=_MINUTE)
        looks, pods = 0, list[Mapping[str, Any]]()
        while True:
            if looks % _PODS_EVERY == 0 or not pods:
                pods = await self._pods(pods)
            looks += 1
            answers = await asyncio.gather(*(self._ask(pod, router) for pod in pods))
            now = dict(answer for answer in answers if answer is not None)
            demand = demand_of(now, past[-1] if past else {}, past[0] if past else {}) if now else None
            past.append(now)
            if demand != self.demand:
                self.demand = demand
                self._changed()
            await asyncio.sleep(EVERY_S)

    async def _pods(self, known: list[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        try:
            return await router_pods(self._kube, self._owner)
        except KubeError as error:
            log.info("the routers of %s/%s can't be listed: %s", self._owner.namespace, self._owner.name, error)
            return known

    async def _ask(self, pod: Mapping[str, Any], router: Router) -> tuple[str, Counts] | None:
        try:
            return await read_router(self._session, pod, router, read_counts, _PATIENCE_S)
        except Unread as why:
            log.info("router %s", why)
            return None


def read_counts(page: str) -> Counts:
    """Return what a router's metrics page says of its load.

    Raises:
        ValueError: this is no metrics page.
    """
    sums: dict[str, float] = {}
    first: dict[float, float] = {}
    queued: dict[float, float] = {}
    buckets = {f"{Metric.ROUTER_FIRST_TOKEN}_bucket": first, f"{Metric.ROUTER_QUEUE_SECONDS}_bucket": queued}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if sample.name in buckets:
                upto, bound = buckets[sample.name], float(sample.labels["le"])
                upto[bound] = upto.get(bound, 0.0) + sample.value
            else:
                sums[sample.name] = sums.get(sample.name, 0.0) + sample.value
    waiting, running, requests = (
        round(sums.get(metric, 0.0))
        for metric in (Metric.ROUTER_WAITING, Metric.ROUTER_IN_FLIGHT, Metric.ROUTER_REQUESTS)
    )
    return Counts(waiting, running, requests, _apart(first), _apart(queued))


def _apart(upto: Mapping[float, float]) -> dict[float, int]:
    """Return how many fell into each bucket, of how many fell below its bound."""
    bounds = [0.0, *sorted(upto)]
    return {high: round(upto[high] - upto.get(low, 0.0)) for low, high in pairwise(bounds)}
