"""Calls to the stages' admin ports, beside the visits: one that failed is planned again at the next look."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import aiohttp

from bireme.wire.state import AdoptRequest, DrainRequest, LeaderRequest, ReloadRequest, UndrainRequest
from bireme_operator.local.admin import post
from bireme_operator.plan.actions import DrainGroup, ReloadGroup, TellLeader, UndrainGroup
from bireme_operator.shell.records import PodRecord

_RETRY_S: Final = 0.5

Verb = DrainRequest | UndrainRequest | LeaderRequest | ReloadRequest
_ONE_AFTER_THE_OTHER: Final = {"/undrain": "/drain"}
"""Calls that undo one another are never under way together."""


@dataclass
class Verbs:
    """The calls under way. ``told`` notes a member that knows its leader, ``changed`` asks for another look."""

    session: aiohttp.ClientSession
    told: Callable[[PodRecord, int], None]
    changed: Callable[[], None]
    _tasks: dict[tuple[str, str], asyncio.Task[None]] = field(default_factory=dict)

    def call(self, pod: PodRecord, action: DrainGroup | UndrainGroup | ReloadGroup | TellLeader, token: str) -> None:
        """Do what a plan asks of this pod."""
        match action:
            case DrainGroup():
                self._begin(pod, "/drain", DrainRequest(action.deadline_s), token)
            case UndrainGroup():
                self._begin(pod, "/undrain", UndrainRequest(), token)
            case ReloadGroup():
                self._begin(pod, "/reload", action.request, token)
            case TellLeader():
                self._begin(pod, "/leader", LeaderRequest(action.address, action.incarnation), token)

    def become(self, pod: PodRecord, leader: int, request: AdoptRequest, spare_token: str) -> None:
        """Tell a pod that stood by who it is; one that knows it already is told where its leader is."""
        key = (pod.uid, "/adopt")
        if key not in self._tasks:
            task = asyncio.get_running_loop().create_task(self._adopt(pod, leader, request, spare_token))
            self._keep(key, task)

    async def close(self) -> None:
        """Give up what is under way."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _begin(self, pod: PodRecord, path: str, body: Verb, token: str) -> None:
        key = (pod.uid, _ONE_AFTER_THE_OTHER.get(path, path))
        if key not in self._tasks:
            task = asyncio.get_running_loop().create_task(self._post(pod, path, body, token))
            self._keep(key, task)

    def _keep(self, key: tuple[str, str], task: asyncio.Task[None]) -> None:
        self._tasks[key] = task
        task.add_done_callback(lambda _: self._tasks.pop(key, None))

    async def _adopt(self, pod: PodRecord, leader: int, request: AdoptRequest, spare_token: str) -> None:
        known = LeaderRequest(request.leader, leader)
        done = await post(self.session, pod.view.address, "/adopt", request, spare_token)
        if done or await post(self.session, pod.view.address, "/leader", known, request.token):
            self.told(pod, leader)
        else:
            await asyncio.sleep(_RETRY_S)
        asyncio.get_running_loop().call_soon(self.changed)

    async def _post(self, pod: PodRecord, path: str, body: Verb, token: str) -> None:
        done = await post(self.session, pod.view.address, path, body, token)
        if done and isinstance(body, LeaderRequest):
            self.told(pod, body.incarnation)
        if not done:
            await asyncio.sleep(_RETRY_S)
        # Not from inside the task: while it runs, the call counts as under way.
        asyncio.get_running_loop().call_soon(self.changed)
