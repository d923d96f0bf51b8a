"""Reads the metrics of a deployment's routers, for as long as a canary is judged by them.

Only what comes from then on counts, so that the canary and the others are compared under the same load. A router that
can't be read is tried again; what it counts meanwhile comes with its next page.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

import aiohttp

from bireme.api.router import Router
from bireme_operator.kube.client import Kube
from bireme_operator.kube.errors import KubeError
from bireme_operator.plan.figures import Figures
from bireme_operator.render.owned import Owner
from bireme_operator.shell.exposition import Tally, read_page
from bireme_operator.shell.router_pages import Unread, read_router, router_pods

log = logging.getLogger(__name__)

EVERY_S: Final = 3.0
_PATIENCE_S: Final = 5.0


class Routers:
    """``figures`` has what was counted since it was asked for; ``changed`` is called when there is more."""

    def __init__(
        self,
        kube: Kube,
        owner: Owner,
        session: aiohttp.ClientSession,
        clock: Callable[[], float],
        changed: Callable[[], None],
    ) -> None:
        self._kube = kube
        self._owner = owner
        self._session = session
        self._clock = clock
        self._changed = changed
        self._trial: float | None = None
        self._task: asyncio.Task[None] | None = None
        self.figures: Figures | None = None

    def count(self, trial: float | None, router: Router) -> None:
        """Count from now on for this trial, if that was not begun already; None ends it."""
        if trial == self._trial:
            return
        self._trial, self.figures = trial, None
        if self._task is not None:
            self._task.cancel()
            self._task = None
        if trial is not None:
            self._task = asyncio.get_running_loop().create_task(self._run(trial, router))

    async def close(self) -> None:
        """End it."""
        task, self._trial, self._task = self._task, None, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _run(self, trial: float, router: Router) -> None:
        tally, since = Tally(), self._clock()
        while True:
            trouble = await self._read_all(tally, router)
            if trouble:
                log.info("routers of %s/%s: %s", self._owner.namespace, self._owner.name, trouble)
            self.figures = Figures(trial, since, dict(tally.versions), trouble)
            self._changed()
            await asyncio.sleep(EVERY_S)

    async def _read_all(self, tally: Tally, router: Router) -> str:
        try:
            pods = await router_pods(self._kube, self._owner)
        except KubeError as error:
            return f"the routers' pods can't be listed: {error}"
        troubles = await asyncio.gather(*(self._read(tally, pod, router) for pod in pods))
        return "; ".join(filter(None, troubles)) if pods else "no router runs"

    async def _read(self, tally: Tally, pod: Mapping[str, Any], router: Router) -> str:
        try:
            tally.take(*await read_router(self._session, pod, router, read_page, _PATIENCE_S))
        except Unread as why:
            return str(why)
        return ""
