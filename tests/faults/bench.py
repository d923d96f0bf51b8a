"""A served group under test: ask it, hurt it, wait for it, and judge what it said."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import httpx

from bireme.wire.state import StateDocument
from bireme_worker.text.tokenizer import TextModel
from tests.faults import formed, kinds
from tests.faults.leaks import busy_gauges
from tests.faults.parts import Part, parts
from tests.faults.tiny import MODEL
from tests.support.deployment import RECOVER_LIMIT_S, Deployment, until
from tests.support.oracle import Oracle

MIXED = (*kinds.STREAMED, *formed.KINDS)
UNREADY_LIMIT_S = 60.0
"""It takes seconds at most; a machine with other work may take its time to look."""


class Judge:
    """Transformers' model in fp32 and the checkpoint's text side."""

    def __init__(self, checkpoint: Path) -> None:
        from transformers import AutoModelForCausalLM

        self._reference = AutoModelForCausalLM.from_pretrained(checkpoint, dtype="float32")
        self._text = TextModel.load(checkpoint)

    def check(self, asks: Sequence[kinds.Ask]) -> None:
        """Fail unless every answer is complete and right."""
        oracle = Oracle(self._reference)
        for ask in asks:
            assert not ask.error, f"lost: {ask.label}: {ask.error}"
            assert not (wrong := kinds.judge(ask, oracle, self._text)), wrong
        oracle.verdict.check()


@dataclass
class Bench:
    """``deployment`` has one group, index 0."""

    deployment: Deployment
    tensor: int
    pipeline: int
    judge: Judge
    dice: random.Random = field(default_factory=lambda: random.Random(7))

    def asks(self, kinds_wanted: Sequence[str] = MIXED, tokens: int = 128) -> list[kinds.Ask]:
        """One request of each kind."""
        return [kinds.make(kind, MODEL, self.dice, tokens) for kind in kinds_wanted]

    @contextlib.asynccontextmanager
    async def asking(self, asks: Sequence[kinds.Ask], after_ids: int = 20) -> AsyncIterator[None]:
        """The block runs once ``after_ids`` ids have come; at its end all answers are awaited and judged."""
        async with aiohttp.ClientSession() as session:
            running = [asyncio.create_task(kinds.run(session, self.deployment.url, ask)) for ask in asks]
            while sum(ask.delivered for ask in asks) < after_ids:
                assert not all(task.done() for task in running), [ask.error for ask in asks]
                await asyncio.sleep(0.01)
            assert not all(task.done() for task in running), "everything was answered before the fault"
            yield
            await asyncio.gather(*running)
            self.judge.check(asks)
            assert not (different := await kinds.compare_again(session, self.deployment.url, asks)), different

    async def ask(self, asks: Sequence[kinds.Ask]) -> None:
        """Send, await, judge."""
        async with aiohttp.ClientSession() as session:
            await asyncio.gather(*(kinds.run(session, self.deployment.url, ask) for ask in asks))
        self.judge.check(asks)

    def parts(self) -> list[Part]:
        """All processes."""
        return parts(self.deployment)

    def state(self) -> StateDocument:
        """The leader's document."""
        return self.deployment.state(0)

    def says(self) -> int:
        """What the leader's `/readyz` answers, when it does: on a busy machine it may take its time."""
        return httpx.get(f"{self.deployment.route(0).admin}/readyz", timeout=60).status_code

    def ranks(self) -> dict[tuple[int, int], tuple[int, int]]:
        """(stage, rank) → (pid, checkpoint loads)."""
        document = self.state()
        return {(s.stage, r.rank): (r.pid, r.loads) for s in document.stages for r in s.ranks}

    async def unready(self, epoch: int) -> None:
        """Wait until the group says that it is not ready, or has been so since it served ``epoch``."""
        await self.wait(lambda: self.deployment.moved_on(0, epoch), "never called itself unready", UNREADY_LIMIT_S)

    async def again(self, epoch: int) -> None:
        """Wait until the group serves a later epoch than ``epoch``, and nothing is left of any request."""
        await asyncio.to_thread(self.deployment.wait_later, 0, epoch)
        assert not (busy := await asyncio.to_thread(busy_gauges, self.deployment, 1)), busy

    async def wait(self, condition: Callable[[], bool], text: str, limit_s: float = RECOVER_LIMIT_S) -> None:
        """Wait for anything else."""
        await asyncio.to_thread(until, condition, limit_s, lambda: f"{text}\n{self.deployment.tail()}")
