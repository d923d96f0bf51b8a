"""Scheduler and model rank wired together without any I/O: a whole engine whose every step a test can hold back."""

from collections import deque
from collections.abc import Sequence as List

from bireme.wire.plan import Plan, Result, Sampling, pack_ids, unpack_ids
from bireme.wire.requests import Submit
from bireme_worker.engine.results import Emission
from bireme_worker.engine.scheduler import Scheduler, SchedulerConfig
from bireme_worker.engine.sequence import Sequence, State
from tests.support.model_rank import BLOCK, ModelRank

GREEDY = Sampling()


def submit(
    prompt: List[int],
    max_tokens: int,
    sampling: Sampling = GREEDY,
    outputs: List[int] = (),
    *,
    priority: int = 0,
    journalled: bool = False,
    key: int = 0,
    adapter: str = "",
) -> Submit:
    """A request as an HTTP process sends it."""
    return Submit(
        key=key,
        request_id=f"r{key}",
        prompt=pack_ids(list(prompt)),
        sampling=sampling,
        max_tokens=max_tokens,
        outputs=pack_ids(list(outputs)),
        priority=priority,
        journalled=journalled,
        adapter=adapter,
    )


class Engine:
    """``plan`` and ``land`` move one plan each; ``emitted`` and ``finished`` collect what clients would see."""

    def __init__(
        self,
        *,
        kv_blocks: int = 64,
        slots: int = 8,
        budget: int = 64,
        stages: int = 1,
        depth: int = 2,
        prefix_caching: bool = True,
        speculation: int = 0,
        adapters: tuple[str, ...] = (),
        poison: frozenset[int] = frozenset(),
    ) -> None:
        self.scheduler = Scheduler(SchedulerConfig(slots, budget, stages, depth, prefix_caching, speculation, adapters))
        self.poison = poison
        self.emitted: dict[Sequence, list[int]] = {}
        self.finished: dict[Sequence, str] = {}
        self.messages: dict[Sequence, str] = {}
        self.cached: dict[Sequence, int] = {}
        self.plans: list[Plan] = []
        self.now = 0.0
        self.epoch = 0
        self.begin(kv_blocks)

    def begin(self, kv_blocks: int, salt: bytes = b"weights") -> None:
        """End the epoch, if there is one, and begin the next with a fresh rank."""
        self.scheduler.end()
        self.epoch += 1
        self.scheduler.begin(self.epoch, kv_blocks, salt)
        config = self.scheduler.config
        self.rank = ModelRank(kv_blocks, config.slots, config.budget, self.poison)
        self.results: deque[Result] = deque()

    def submit(self, request: Submit) -> Sequence:
        """Queue a request."""
        self.now += 0.001
        return self.scheduler.submit(request, self.now)

    def cancel(self, sequence: Sequence) -> None:
        """The client left."""
        self.scheduler.cancel(sequence)

    def plan(self) -> Plan | None:
        """Issue a plan, if the scheduler has one, and let the rank run it; the result stays under way."""
        plan = self.scheduler.plan()
        if plan is not None:
            self.plans.append(plan)
            self.results.append(self.rank.run(plan))
        return plan

    def land(self) -> list[Emission]:
        """Deliver the oldest result."""
        emissions = self.scheduler.complete(self.results.popleft())
        for emission in emissions:
            self._collect(emission)
        return emissions

    def _collect(self, emission: Emission) -> None:
        sequence = emission.sequence
        assert sequence not in self.finished, "ids after the end"
        self.emitted.setdefault(sequence, []).extend(unpack_ids(emission.ids))
        if emission.cached:
            assert sequence not in self.cached
            self.cached[sequence] = emission.cached
        if emission.finish:
            self.finished[sequence] = emission.finish
            self.messages[sequence] = emission.message

    def step(self) -> bool:
        """Issue all that may be issued, then deliver one result; False when nothing was left to do."""
        while self.plan():
            pass
        if self.results:
            self.land()
            return True
        return False

    def run(self, limit: int = 10_000) -> None:
        """Run until nothing is left to do."""
        for _ in range(limit):
            if not self.step():
                assert not list(self.scheduler.unfinished()), "work is left and nothing can be issued"
                return
        raise AssertionError(f"not finished after {limit} steps")

    def check(self) -> None:
        """Every block is where the sequences say, slots are not shared, and nothing is lost."""
        scheduler, pool = self.scheduler, self.scheduler.space.pool
        holders = [*scheduler.running, *scheduler._leaving]
        held: dict[int, int] = {}
        for sequence in holders:
            assert len(set(sequence.blocks)) == len(sequence.blocks)
            assert len(sequence.blocks) >= -(-sequence.positions // BLOCK)
            for block in sequence.blocks:
                held[block] = held.get(block, 0) + 1
        for block in range(1, pool.total + 1):
            assert pool.references(block) == held.get(block, 0)
        assert pool.used == len(held)
        assert 0 not in held
        slots = [sequence.slot for sequence in holders]
        assert len(set(slots)) == len(slots)
        assert sorted(slots + scheduler._slots) == list(range(1, scheduler.config.slots + 1))
        for sequence in scheduler.waiting:
            assert (sequence.state, sequence.blocks, sequence.slot) == (State.WAITING, [], 0)
        for sequence in scheduler._leaving:
            assert sequence.in_flight > 0
        assert scheduler.in_flight == len(self.results) <= scheduler.config.depth

    def check_empty(self) -> None:
        """After the last request: nothing is held."""
        self.check()
        assert self.scheduler.space.pool.used == 0
        assert not self.scheduler.running
        assert not self.scheduler._leaving
        assert not len(self.scheduler.waiting)
