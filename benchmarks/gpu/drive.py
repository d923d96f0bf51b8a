"""Plans of the real scheduler, driven through one runner in this process or through a group of rank processes.

Several plans are in flight, as with a coordinator. What comes back: the ids, when each request's tokens came, and when
each step ended.
"""

import statistics
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

from benchmarks.gpu.workloads import Request, fixed
from bireme.wire.plan import Plan, Result, Sampling, pack_ids, unpack_ids
from bireme.wire.requests import Submit
from bireme_worker.engine.scheduler import Scheduler, SchedulerConfig
from bireme_worker.rank.runner import Handle, Runner
from tests.support.rank_group import RankGroup

SLOTS, BUDGET = 256, 8192
Late = tuple[int, Request]
"""After so many steps, this request."""


class Engine(Protocol):
    """What computes plans, in order."""

    stages: int
    blocks: int

    @property
    def epoch(self) -> int:
        """The one that stands."""
        ...

    def begin(self) -> None:
        """No request is known any more."""
        ...

    def send(self, plan: Plan) -> None:
        """Start a step."""
        ...

    def receive(self) -> Result:
        """Wait for the oldest one."""
        ...


class Solo:
    """One rank in this process."""

    epoch = 1

    def __init__(self, runner: Runner) -> None:
        self.runner = runner
        self.stages = 1
        self.blocks = runner.cache.blocks
        self._flying: deque[Handle] = deque()

    def begin(self) -> None:
        self.runner.slots.reset()

    def send(self, plan: Plan) -> None:
        self._flying.append(self.runner.launch(plan))

    def receive(self) -> Result:
        return self.runner.collect(self._flying.popleft())


class Formed:
    """A group of rank processes that has formed an epoch."""

    def __init__(self, group: RankGroup, blocks: int) -> None:
        self.group = group
        self.stages, self.blocks = group.stages, blocks

    @property
    def epoch(self) -> int:
        return self.group.epoch

    def begin(self) -> None:
        """Slots are admitted anew."""

    def send(self, plan: Plan) -> None:
        self.group.send_plan(plan)

    def receive(self) -> Result:
        return self.group.receive_result()


@dataclass(frozen=True)
class Run:
    """Per request its ids and when they came, ``steps``: when each step ended; in seconds of the same clock."""

    ids: list[list[int]]
    arrivals: list[list[float]]
    steps: list[float]
    seconds: float

    @property
    def rate(self) -> float:
        """Output tokens per second."""
        return sum(map(len, self.ids)) / self.seconds


def drive(
    engine: Engine,
    requests: Sequence[Request],
    *,
    slots: int = SLOTS,
    budget: int = BUDGET,
    hot: bool = False,
    late: Sequence[Late] = (),
) -> Run:
    """Run all requests to their ends; ``hot``: every second one draws, ``late``: further ones that come later."""
    scheduler = Scheduler(
        SchedulerConfig(slots, budget, stages=engine.stages, depth=2 * engine.stages + 1, prefix_caching=False)
    )
    engine.begin()
    scheduler.begin(engine.epoch, engine.blocks, b"")
    everything, waiting = [*requests, *(request for _, request in late)], deque(at for at, _ in late)
    run = Run([[] for _ in everything], [[] for _ in everything], [], 0.0)
    submitted = flying = 0
    begin = time.perf_counter()
    while True:
        while submitted < len(requests) or (waiting and len(run.steps) >= waiting[0]):
            if submitted >= len(requests):
                waiting.popleft()
            _submit(scheduler, submitted, everything[submitted], hot=hot)
            submitted += 1
        plan = scheduler.plan()
        if plan is not None:
            engine.send(plan)
            flying += 1
            continue
        if not flying:
            break
        result = engine.receive()
        flying -= 1
        now = time.perf_counter()
        run.steps.append(now)
        for emission in scheduler.complete(result):
            key, drawn = emission.sequence.request.key, unpack_ids(emission.ids)
            run.ids[key] += drawn
            run.arrivals[key] += [now] * len(drawn)
    run = Run(run.ids, run.arrivals, run.steps, time.perf_counter() - begin)
    assert [len(ids) for ids in run.ids] == [count for _, count in everything], "not every token came"
    return run


def _submit(scheduler: Scheduler, number: int, request: Request, *, hot: bool) -> None:
    sampling = Sampling(temperature=0.8 if hot and number % 2 else 0.0, seed=number)
    scheduler.submit(Submit(number, str(number), pack_ids(request[0]), sampling, request[1]), float(number))


def gaps_ms(arrivals: Sequence[float], skip: int = 0) -> list[float]:
    """Milliseconds between a request's tokens, rising; without the first ``skip``."""
    return sorted(1e3 * (after - at) for at, after in pairwise(arrivals[skip:]))


def latency(engine: Engine, vocabulary: int, context: int, tokens: int = 160, *, skip: int = 16) -> float:
    """Median milliseconds between tokens of one request."""
    run = drive(engine, fixed(vocabulary, 1, context, tokens))
    return statistics.median(gaps_ms(run.arrivals[0], skip))
