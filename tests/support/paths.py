"""The real scheduler over real runners: one way, of many, to compute a set of requests."""

from collections import deque
from collections.abc import Sequence as List
from dataclasses import dataclass, field, replace

import msgspec

from bireme.wire.plan import Logprobs, Sampling, pack_ids, unpack_ids
from bireme.wire.requests import Submit
from bireme_worker.engine.results import Emission
from bireme_worker.engine.scheduler import Scheduler, SchedulerConfig
from bireme_worker.engine.sequence import Sequence, State
from bireme_worker.text.grammar import Constraint, Grammar
from tests.support.rank_threads import ThreadedRanks

ADAPTERS = ("", "small", "wide")


@dataclass
class Asked:
    """One request and what came of it; ``outputs`` given at first are resumed. ``grammar``: the form that it must have."""

    prompt: list[int]
    sampling: Sampling
    max_tokens: int
    adapter: int = 0
    outputs: list[int] = field(default_factory=list)
    logprobs: list[Logprobs] = field(default_factory=list)
    finish: str = ""
    grammar: Grammar | None = None
    constraint: Constraint | None = None

    @property
    def submission(self) -> Submit:
        """As an HTTP process sends it."""
        prompt, outputs = pack_ids(self.prompt), pack_ids(self.outputs)
        adapter = ADAPTERS[self.adapter]
        return Submit(0, "r", prompt, self.sampling, self.max_tokens, outputs, adapter=adapter)

    def bind(self) -> bytes:
        """The first mask, behind the outputs that there are; none without a grammar."""
        if self.grammar is None:
            return b""
        self.constraint = self.grammar.begin(self.sampling.stop_ids, None)
        for token in self.outputs:
            self.constraint.push(token)
        mask = self.constraint.mask(may_end=len(self.outputs) >= self.sampling.min_tokens)
        assert mask is not None, "it had ended"
        return mask

    def resumed(self, kept: int) -> "Asked":
        """The same, of which ``kept`` tokens were delivered elsewhere."""
        return replace(self, outputs=self.outputs[:kept], logprobs=self.logprobs[:kept], finish="", constraint=None)

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
        self._salt = salt

    def run(
        self,
        requests: List[Asked],
        preempt_at: frozenset[int] = frozenset(),
        lose_at: frozenset[int] = frozenset(),
    ) -> None:
        """Compute them to their ends; before the steps ``preempt_at`` the least urgent running one is preempted.

        After so many results as ``lose_at`` says what is under way is lost, and the group is formed anew.
        """
        owners: dict[Sequence, Asked] = {}
        for number, request in enumerate(requests):
            submission = msgspec.structs.replace(request.submission, mask=request.bind())
            owners[self.scheduler.submit(submission, float(number))] = request
        in_flight: deque[int] = deque()
        landed = 0
        while True:
            if landed in lose_at and in_flight:
                self._lose(in_flight)
            if self.scheduler.step in preempt_at:
                self._preempt()
            while (plan := self.scheduler.plan()) is not None:
                self._ranks.send_plan(plan)
                in_flight.append(plan.step)
            if not in_flight:
                assert not list(self.scheduler.unfinished())
                return
            in_flight.popleft()
            landed += 1
            for emission in self.scheduler.complete(self._ranks.receive_result()):
                self._take(emission, owners[emission.sequence])

    def _take(self, emission: Emission, request: Asked) -> None:
        ids = unpack_ids(emission.ids)
        request.outputs += ids
        request.logprobs += emission.logprobs
        request.finish = emission.finish
        assert emission.finish != "error", emission.message
        if request.constraint is not None and not request.finish:
            for token in ids:
                request.constraint.push(token)
            self._bind(emission.sequence, request, request.constraint)

    def _bind(self, sequence: Sequence, request: Asked, constraint: Constraint) -> None:
        """What an HTTP process does behind each id of a bound request."""
        mask = None
        if not constraint.complete:
            mask = constraint.mask(may_end=len(request.outputs) >= request.sampling.min_tokens)
        if mask is None:
            self.scheduler.cancel(sequence)
            request.finish = "stop" if constraint.may_stop else "length"
        else:
            self.scheduler.allow(sequence, len(request.outputs), mask)

    def _lose(self, in_flight: deque[int]) -> None:
        while in_flight:
            in_flight.popleft()
            self._ranks.receive_result()
        blocks = self.scheduler.space.pool.total + 1
        self.scheduler.end()
        self.scheduler.begin(self._ranks.epoch, blocks, self._salt)

    def _preempt(self) -> None:
        if self.scheduler.running:
            victim = max(self.scheduler.running, key=lambda sequence: sequence.order)
            self.scheduler._leave(victim, State.PREEMPTED)
