"""The survival scenario: streams run, a part of a group is killed in their midst, and every figure of it is kept.

Used by the system test, which repeats it for every kind of victim, and by `benchmarks/foundation.py`.
"""

import asyncio
import os
import signal
import time
from dataclasses import dataclass

from tests.support.deployment import RECOVER_LIMIT_S, Deployment, parent_of, until
from tests.support.streams import Delivery, run_all

VICTIMS = ("a stage-1 rank", "a stage-1 supervisor", "a leader")
KILL_AFTER_IDS = 120
UNREADY_LIMIT_S = 60
"""It takes seconds at most; a machine with other work may take its time to look."""


@dataclass(frozen=True)
class Stage:
    """The rank processes of one stage: what must stay the same for survivors."""

    pids: tuple[int, ...]
    loads: tuple[int, ...]


def stages_of(deployment: Deployment, group: int) -> list[Stage]:
    """All stages of a group, by its leader's word."""
    document = deployment.state(group)
    return [
        Stage(tuple(rank.pid for rank in stage.ranks), tuple(rank.loads for rank in stage.ranks))
        for stage in sorted(document.stages, key=lambda stage: stage.stage)
    ]


def busiest(deployment: Deployment) -> int:
    """The group that runs most requests; at least one runs."""
    running = {route.index: deployment.state(route.index).running for route in deployment.routes().groups}
    group = max(running, key=lambda index: running[index])
    assert running[group] > 0, "nothing to interrupt"
    return group


def _victim_pid(stages: list[Stage], victim: str) -> int:
    stage = 0 if victim == "a leader" else 1
    pid = stages[stage].pids[0]
    return pid if victim == "a stage-1 rank" else parent_of(pid)


class Killer:
    """Kills once enough ids have been delivered; sees when the group stops being ready and when it serves again."""

    def __init__(self, deployment: Deployment, victim: str) -> None:
        self._deployment = deployment
        self._victim = victim
        self.group = -1
        self.epoch = 0
        self.before: list[Stage] = []
        self.killed_at = 0.0
        self.unready_after_s = float("inf")
        self.recovered_after_s = float("inf")
        self._task: asyncio.Task[None] | None = None

    def on_total(self, total: int) -> None:
        """Told how many ids have come in all."""
        if total >= KILL_AFTER_IDS and self._task is None:
            self._task = asyncio.create_task(asyncio.to_thread(self._kill))

    async def finish(self) -> None:
        """Wait until the killed group serves again."""
        assert self._task is not None, "the streams ended before the fault"
        await self._task

    def _kill(self) -> None:
        deployment = self._deployment
        self.group = busiest(deployment)
        self.epoch = deployment.state(self.group).epoch
        self.before = stages_of(deployment, self.group)
        self.killed_at = time.monotonic()
        os.kill(_victim_pid(self.before, self._victim), signal.SIGKILL)
        until(
            lambda: deployment.moved_on(self.group, self.epoch), UNREADY_LIMIT_S, lambda: "never called itself unready"
        )
        self.unready_after_s = time.monotonic() - self.killed_at
        deployment.wait_later(self.group, self.epoch)
        self.recovered_after_s = time.monotonic() - self.killed_at


async def survive(deployment: Deployment, victim: str, wanted: list[Delivery], max_tokens: int) -> Killer:
    """Run ``wanted``, kill ``victim`` meanwhile, and wait until all groups serve again."""
    killer = Killer(deployment, victim)
    await run_all(deployment.url, wanted, max_tokens, killer.on_total)
    await killer.finish()
    await asyncio.to_thread(deployment.wait_serving, len(deployment.groups()), RECOVER_LIMIT_S)
    return killer
