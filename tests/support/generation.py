"""A coordinator for tests: turns requests into plans, plans into results, and keeps plans ahead of results.

Knows nothing of processes: it drives anything that takes plans and gives results in order (`rank_group`, `rank_threads`).
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from bireme.wire.plan import Admit, Logprobs, Plan, Result, Row, Sampling, pack_ids, unpack_ids

BLOCK = 16


class Ranks(Protocol):
    """A formed group."""

    epoch: int

    def send_plan(self, plan: Plan) -> None: ...

    def receive_result(self) -> Result: ...


@dataclass
class Request:
    """One request and what came of it. ``arrives`` is the step before which it is not known."""

    prompt: list[int]
    max_tokens: int
    sampling: Sampling = field(default_factory=Sampling)
    arrives: int = 0
    adapter: int = 0
    outputs: list[int] = field(default_factory=list)
    logprobs: list[Logprobs | None] = field(default_factory=list)
    bad: bool = False


@dataclass
class _Running:
    request: Request
    slot: int
    computed: int = 0
    issued: int = 0
    blocks: int = 0

    @property
    def total(self) -> int:
        """Tokens to compute before the next sample, counting samples that are issued but not back."""
        return len(self.request.prompt) + self.issued


def generate(ranks: Ranks, requests: Sequence[Request], *, chunk: int = 512, depth: int = 2, slots: int = 64) -> None:
    """Run ``requests`` to their ends: mixed steps of at most ``chunk`` tokens, ``depth`` plans in flight."""
    scheduler = _Scheduler(requests, chunk, slots)
    flying: deque[list[_Running]] = deque()
    step = 0
    while True:
        plan, sampling = scheduler.next_plan(ranks.epoch, step)
        if plan is not None:
            ranks.send_plan(plan)
            flying.append(sampling)
            step += 1
        if not flying:
            return
        if plan is None or len(flying) >= depth:
            scheduler.take(ranks.receive_result(), flying.popleft())


class _Scheduler:
    def __init__(self, requests: Sequence[Request], chunk: int, slots: int) -> None:
        self._waiting = deque(sorted(requests, key=lambda request: request.arrives))
        self._running: list[_Running] = []
        self._chunk = chunk
        self._free = list(range(1, slots + 1))
        self._next_block = 1
        self._released: list[int] = []

    def next_plan(self, epoch: int, step: int) -> tuple[Plan | None, list[_Running]]:
        admits = tuple(self._admit(step))
        rows: list[Row] = []
        sampling: list[_Running] = []
        budget = self._chunk
        for one in self._running:
            if budget == 0 or one.issued >= one.request.max_tokens:
                continue
            row = self._row(one, budget)
            budget -= row.count
            rows.append(row)
            if row.output >= 0:
                sampling.append(one)
        if not rows and not admits and not self._waiting:
            return None, []
        releases, self._released = tuple(self._released), []
        return Plan(epoch=epoch, step=step, rows=tuple(rows), admits=admits, releases=releases), sampling

    def take(self, result: Result, sampling: list[_Running]) -> None:
        ids = unpack_ids(result.ids)
        assert len(ids) == len(sampling)
        for place, (one, token) in enumerate(zip(sampling, ids, strict=True)):
            one.request.outputs.append(token)
            one.request.logprobs.append(result.logprobs[place] if result.logprobs else None)
            one.request.bad = one.request.bad or place in result.bad
            if len(one.request.outputs) == one.request.max_tokens:
                self._running.remove(one)
                self._released.append(one.slot)
                self._free.append(one.slot)

    def _admit(self, step: int) -> Iterable[Admit]:
        while self._waiting and self._free and self._waiting[0].arrives <= step:
            request = self._waiting.popleft()
            one = _Running(request, self._free.pop(0))
            self._running.append(one)
            yield Admit(one.slot, request.sampling, pack_ids(request.prompt), pack_ids([]), request.adapter)

    def _row(self, one: _Running, budget: int) -> Row:
        count = min(one.total - one.computed, budget)
        ends = one.computed + count == one.total
        prompt = one.request.prompt[one.computed : one.computed + count]
        blocks = -(-(one.computed + count) // BLOCK) - one.blocks
        row = Row(
            slot=one.slot,
            start=one.computed,
            count=count,
            ids=pack_ids(prompt),
            blocks=tuple(range(self._next_block, self._next_block + blocks)),
            output=one.issued if ends else -1,
        )
        self._next_block += blocks
        one.blocks += blocks
        one.computed += count
        one.issued += ends
        return row
