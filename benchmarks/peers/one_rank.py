"""One rank and the scheduler in this process, without a socket between them: what a step costs by itself."""

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bireme.wire.plan import Sampling, pack_ids
from bireme.wire.requests import Submit
from bireme_worker.engine.scheduler import Scheduler, SchedulerConfig
from bireme_worker.models.progress import Progress
from bireme_worker.parallel.communicator import SoloCommunicator
from bireme_worker.parallel.gate import EpochGate
from bireme_worker.rank.loading import load_runner
from bireme_worker.rank.main import _tune_allocator
from tests.support.rank_threads import identity


@dataclass
class Spent:
    """Seconds, and over how many steps."""

    compute_s: float = 0.0
    schedule_s: float = 0.0
    steps: int = 0


class OneRank:
    """Runs greedy requests, ``slots`` at a time."""

    def __init__(self, model: Path, kv_bytes: int, slots: int) -> None:
        _tune_allocator()
        pod = identity(model, kv_bytes=kv_bytes, max_running_requests=slots)
        self._runner = load_runner(pod, 0, pod.checkpoint, Progress())
        self._slots = slots

    def run(self, requests: Sequence[tuple[list[int], int]]) -> Spent:
        """Compute them to their ends."""
        scheduler = Scheduler(SchedulerConfig(self._slots, 512, 1, 2))
        scheduler.begin(1, self._runner.cache.blocks, os.urandom(8))
        self._runner.begin(SoloCommunicator(EpochGate(1)))
        for key, (prompt, tokens) in enumerate(requests):
            scheduler.submit(Submit(key, str(key), pack_ids(prompt), Sampling(), tokens), float(key))
        spent, mark = Spent(), time.perf_counter()
        while (plan := scheduler.plan()) is not None:
            begin = time.perf_counter()
            result = self._runner.collect(self._runner.launch(plan))
            end = time.perf_counter()
            scheduler.complete(result)
            spent.schedule_s += begin - mark
            spent.compute_s += end - begin
            spent.steps += 1
            mark = end
        return spent
