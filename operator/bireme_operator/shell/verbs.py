"""Calls to the stages' admin ports, beside the visits: one that failed is planned again at the next look."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import aiohttp

from bireme.wire.state import DrainRequest, LeaderRequest, ReloadRequest
from bireme_operator.local.admin import post
from bireme_operator.shell.records import PodRecord

_RETRY_S: Final = 0.5

Verb = DrainRequest | LeaderRequest | ReloadRequest


@dataclass
class Verbs:
    """The calls under way. ``told`` notes a member that knows its leader, ``changed`` asks for another look."""

    session: aiohttp.ClientSession
    told: Callable[[PodRecord, int], None]
    changed: Callable[[], None]
    _tasks: dict[tuple[str, str], asyncio.Task[None]] = field(default_factory=dict)

    def drain(self, pod: PodRecord, deadline_s: float, token: str) -> None:
        """Ask the leader pod to drain its group."""
        self._begin(pod, "/drain", DrainRequest(deadline_s), token)

    def introduce(self, pod: PodRecord, address: str, incarnation: int, token: str) -> None:
        """Tell a member where its leader is."""
        self._begin(pod, "/leader", LeaderRequest(address, incarnation), token)

    def reload(self, pod: PodRecord, request: ReloadRequest, token: str) -> None:
        """Ask the leader pod to serve another checkpoint."""
        self._begin(pod, "/reload", request, token)

    async def close(self) -> None:
        """Give up what is under way."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _begin(self, pod: PodRecord, path: str, body: Verb, token: str) -> None:
        key = (pod.uid, path)
        if key not in self._tasks:
            task = asyncio.get_running_loop().create_task(self._post(pod, path, body, token))
            self._tasks[key] = task
            task.add_done_callback(lambda _: self._tasks.pop(key, None))

    async def _post(self, pod: PodRecord, path: str, body: Verb, token: str) -> None:
        done = await post(self.session, pod.view.address, path, body, token)
        if done and isinstance(body, LeaderRequest):
            self.told(pod, body.incarnation)
        if not done:
            await asyncio.sleep(_RETRY_S)
        # Not from inside the task: while it runs, the call counts as under way.
        asyncio.get_running_loop().call_soon(self.changed)
