"""The real scheduler over real runners: one way, of many, to compute a set of requests."""

from collections import deque
from collections.abc import Sequence as List
from dataclasses import dataclass, field, replace

from bireme.wire.plan import Logprobs, Sampling, pack_ids, unpack_ids
from bireme.wire.requests import Submit
from bireme_worker.engine.scheduler import Scheduler, SchedulerConfig
from bireme_worker.engine.sequence import Sequence
from tests.support.rank_threads import ThreadedRanks

ADAPTERS = ("", "small", "wide")


@dataclass
class Asked:
    """One request and what came of it; ``outputs`` given at first are resumed."""

    prompt: list[int]
    sampling: Sampling
    max_tokens: int
    adapter: int = 0
    outputs: list[int] = field(default_factory=list)
    logprobs: list[Logprobs] = field(default_factory=list)
    finish: str = ""

    @property
    def submission(self) -> Submit:
        """As an HTTP process sends it."""
        prompt, outputs = pack_ids(self.prompt), pack_ids(self.outputs)
        adapter = ADAPTERS[self.adapter]
        return Submit(0, "r", prompt, self.sampling, self.max_tokens, outputs, adapter=adapter)

    def resumed(self, kept: int) -> "Asked":
        """The same, of which ``kept`` tokens were delivered elsewhere."""
        return replace(self, outputs=self.outputs[:kept], logprobs=self.logprobs[:kept], finish="")

    def anew(self) -> "Asked":
        """The same, from its start."""
        return self.resumed(0)


@dataclass(frozen=True)
class Path:
    """How requests are computed. ``stages`` and ``depth`` are the scheduler's; the ranks may have fewer stages."""

    budget: int = 512
    slots: int = 16
    blocks: int = 256
    stages: int = 1
    depth: int = 2
    prefix_caching: bool = False
    speculation: int = 0


class Engine:
    """Computes on ``ranks`` by ``path``; the prefix cache lives as long as this object."""

    def __init__(self, ranks: ThreadedRanks, path: Path, salt: bytes = b"") -> None:
        config = SchedulerConfig(
            min(path.slots, path.budget),
            path.budget,
            path.stages,
            path.depth,
            path.prefix_caching,
            path.speculation,
            ADAPTERS[1:],
        )
        self.scheduler = Scheduler(config)
        self.scheduler.begin(ranks.epoch, path.blocks, salt)
        self._ranks = ranks

    def run(self, requests: List[Asked], preempt_at: frozenset[int] = frozenset()) -> None:
        """Compute them to their ends; before the steps ``preempt_at`` the least urgent running one is preempted."""
        owners: dict[Sequence, Asked] = {}
        for number, request in enumerate(requests):
            owners[self.scheduler.submit(request.submission, float(number))] = request
        in_flight: deque[int] = deque()
        while True:
            if self.scheduler.step in preempt_at:
                self._preempt()
            while (plan := self.scheduler.plan()) is not None:
                self._ranks.send_plan(plan)
                in_flight.append(plan.step)
            if not in_flight:
                assert not list(self.scheduler.unfinished())
                return
            in_flight.popleft()
            for emission in self.scheduler.complete(self._ranks.receive_result()):
                request = owners[emission.sequence]
                request.outputs += unpack_ids(emission.ids)
                request.logprobs += emission.logprobs
                request.finish = emission.finish
                assert emission.finish != "error", emission.message

    def _preempt(self) -> None:
        if self.scheduler.running:
            from bireme_worker.engine.sequence import State

            victim = max(self.scheduler.running, key=lambda sequence: sequence.order)
            self.scheduler._leave(victim, State.PREEMPTED)
