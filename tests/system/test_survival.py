"""The main promise: a client does not notice when a rank, a stage or a leader is killed in the middle of its answer."""

import asyncio
import os
import signal
import time
from dataclasses import dataclass
from typing import Any

import pytest

from tests.support.deployment import RECOVER_LIMIT_S, Deployment, parent_of, until
from tests.support.oracle import Oracle
from tests.support.streams import Delivery, deliveries, run_all
from tests.system.sampler import StatusSampler

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

REPEAT = int(os.environ.get("BIREME_SOAK_REPEAT", "2"))
MAX_TOKENS = 48
KILL_AFTER_IDS = 120
VICTIMS = ["a stage-1 rank", "a stage-1 supervisor", "a leader"]


@dataclass(frozen=True)
class Stage:
    """The rank processes of one stage: what must stay the same for survivors."""

    pids: tuple[int, ...]
    loads: tuple[int, ...]


def _stages(deployment: Deployment, group: int) -> list[Stage]:
    document = deployment.state(group)
    return [
        Stage(tuple(rank.pid for rank in stage.ranks), tuple(rank.loads for rank in stage.ranks))
        for stage in sorted(document.stages, key=lambda stage: stage.stage)
    ]


def _victim_pid(stages: list[Stage], victim: str) -> int:
    stage = 0 if victim == "a leader" else 1
    pid = stages[stage].pids[0]
    return pid if victim == "a stage-1 rank" else parent_of(pid)


class Killer:
    """Kills once enough ids have been delivered, and sees when the group stops calling itself ready."""

    def __init__(self, deployment: Deployment, sampler: StatusSampler, victim: str) -> None:
        self._deployment = deployment
        self._sampler = sampler
        self._victim = victim
        self.group = -1
        self.epoch = 0
        self.before: list[Stage] = []
        self.unready_after_s = float("inf")
        self._task: asyncio.Task[None] | None = None

    def on_total(self, total: int) -> None:
        if total >= KILL_AFTER_IDS and self._task is None:
            self._task = asyncio.create_task(asyncio.to_thread(self._kill))

    def _kill(self) -> None:
        running = {index: self._deployment.state(index) for index in (0, 1)}
        self.group = max(running, key=lambda index: running[index].running)
        assert running[self.group].running > 0, "nothing to interrupt"
        self.epoch = running[self.group].epoch
        self.before = _stages(self._deployment, self.group)
        self._sampler.fault(self.group)
        killed = time.monotonic()
        os.kill(_victim_pid(self.before, self._victim), signal.SIGKILL)
        until(lambda: not self._deployment.ready(self.group), 10, lambda: "never called itself unready")
        self.unready_after_s = time.monotonic() - killed

    async def finish(self) -> None:
        assert self._task is not None, "the streams ended before the fault"
        await self._task


def _judge(reference: Any, delivered: list[Delivery]) -> None:
    oracle = Oracle(reference)
    for item in delivered:
        assert item.finish_reason == "length", item.label
        assert len(item.response_ids) == 1, item.label
        assert len(item.ids) == MAX_TOKENS, item.label
        assert item.usage.completion_tokens == MAX_TOKENS
        assert item.usage.prompt_tokens == len(item.prompt_ids) > 0
        oracle.judge(item.prompt_ids, item.ids, item.sampling, item.label)
    oracle.verdict.check()


@pytest.mark.parametrize("repetition", range(REPEAT))
@pytest.mark.parametrize("victim", VICTIMS)
async def test_sixteen_streams_survive_the_loss_of(
    victim: str, repetition: int, demo: Deployment, reference: Any
) -> None:
    wanted = deliveries(seeded=8, greedy=8, first_seed=1000 * (repetition + 1))
    with StatusSampler(demo) as sampler:
        killer = Killer(demo, sampler, victim)
        await run_all(demo.url, wanted, MAX_TOKENS, killer.on_total)
        await killer.finish()
        await asyncio.to_thread(demo.wait_serving, 2, RECOVER_LIMIT_S)
    sampler.check()
    _judge(reference, wanted)
    assert killer.unready_after_s <= 2
    after = demo.state(killer.group)
    assert after.epoch > killer.epoch
    survivor = 1 if victim == "a leader" else 0
    assert _stages(demo, killer.group)[survivor] == killer.before[survivor], "a survivor was restarted or loaded again"
    assert _stages(demo, killer.group)[1 - survivor] != killer.before[1 - survivor]
