"""Continuous batching: which tokens of which requests the next step computes.

Decoding sequences come first, one token each; what is left of the token budget goes to prompts, cut into chunks. When
blocks run out, the least urgent running sequence is preempted and computed anew later. Plans are issued ahead of their
results, so a sequence may stop, be cancelled or preempted while plans with rows of it are under way: those rows still
run, and its blocks and slot come back with the last of them. Pure: no clock, no I/O.
"""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from bireme.wire.plan import Plan, Result
from bireme.wire.requests import Submit
from bireme_worker.engine.draft import Draft
from bireme_worker.engine.kv_space import KVSpace
from bireme_worker.engine.micro_batch import early_batch, micro_batch
from bireme_worker.engine.results import Emission, Flight, Flights
from bireme_worker.engine.sequence import ID_BYTES, Sequence, State, finish_reason
from bireme_worker.engine.waiting import WaitingQueue

SHORT_STEP: Final = 64
"""Tokens of a step while many sequences are computed anew at once."""


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """``slots``: sequences running at once. ``budget``: tokens of a step. ``depth``: plans in flight.

    With no more slots than budget, decoding sequences can't take a whole step, so a prompt always advances. With a
    depth of at least ``stages`` no stage idles for want of a plan.
    """

    slots: int
    budget: int
    stages: int
    depth: int
    prefix_caching: bool = True

    def __post_init__(self) -> None:
        assert 1 <= self.slots <= self.budget
        assert 1 <= self.stages <= self.depth


@dataclass(slots=True)
class Counters:
    """Totals since the process began."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    generation_tokens: int = 0
    preemptions: int = 0
    nonfinite: int = 0


class Scheduler:
    """Holds the sequences of one group. Without an epoch (before ``begin``, after ``end``) everything waits.

    While ``holding``, what no weights have worked on yet waits too.
    """

    def __init__(self, config: SchedulerConfig) -> None:
        self.config = config
        self.counters = Counters()
        self.waiting = WaitingQueue()
        self.holding = False
        self._serial = 0
        self._clear(epoch=0, kv_blocks=1, salt=b"")

    def _clear(self, epoch: int, kv_blocks: int, salt: bytes) -> None:
        self.epoch = epoch
        self.step = 0
        self.space = KVSpace(kv_blocks, salt, self.config.prefix_caching)
        self.running: dict[Sequence, None] = {}
        self._leaving: dict[Sequence, None] = {}
        self._slots = list(range(1, self.config.slots + 1))
        self._releases: list[int] = []
        self._flights = Flights()
        self._anew = 0

    @property
    def in_flight(self) -> int:
        """Plans issued whose results are not in."""
        return len(self._flights)

    def unfinished(self) -> Iterator[Sequence]:
        """Every request that has not ended."""
        yield from self.running
        yield from (sequence for sequence in self._leaving if sequence.state is State.PREEMPTED)
        yield from self.waiting

    @property
    def queued_prefill_tokens(self) -> int:
        """Known tokens that are still to be computed before their sequences can draw."""
        running = sum(s.target - s.positions for s in self.running if s.prefilling)
        return running + sum(sequence.length for sequence in self.waiting)

    def begin(self, epoch: int, kv_blocks: int, salt: bytes) -> None:
        """Start an epoch with an empty pool and cache. ``salt`` names the weights. ``end`` the old one first."""
        self._clear(epoch, kv_blocks, salt)

    def end(self) -> None:
        """The epoch is over: plans in flight are lost, and every unfinished sequence waits with its known ids."""
        unfinished = list(self.unfinished())
        self.waiting = WaitingQueue()
        for sequence in unfinished:
            sequence.rewind()
            sequence.labels.clear()
            self.waiting.add(sequence)
        self._clear(epoch=0, kv_blocks=1, salt=b"")

    @property
    def _budget(self) -> int:
        if self._anew <= 0:
            return self.config.budget
        return min(self.config.budget, max(SHORT_STEP, 2 * self.config.slots))

    @property
    def settled(self) -> bool:
        """Nothing is in flight, and all that has begun has ended."""
        return not (self._flights or self.running or self._leaving or self.waiting.first(begun=True))

    def change_weights(self, salt: bytes) -> None:
        """Other weights compute from the next plan on: known ids stay, all that was computed goes. Nothing in flight.

        A step number is never used twice in an epoch, and ranks hear of every slot that became free. Steps are short
        until what waits now is computed: the first token must not wait for the prompts of all.
        """
        assert not self._flights
        for sequence in list(self.running):
            self._leave(sequence, State.PREEMPTED)
        for sequence in self.waiting:
            sequence.labels.clear()
        self.space = KVSpace(self.space.pool.total + 1, salt, self.config.prefix_caching)
        self._anew = self.queued_prefill_tokens

    def submit(self, request: Submit, now: float) -> Sequence:
        """Queue a request that ``admission`` let pass and whose ``outputs`` do not end it already."""
        self._serial += 1
        sequence = Sequence.of(request, now, self._serial)
        self.waiting.add(sequence)
        return sequence

    def cancel(self, sequence: Sequence) -> None:
        """Nobody wants the rest. Works in every state, also after the end."""
        if sequence.state is State.WAITING:
            self.waiting.remove(sequence)
        elif sequence.state is State.RUNNING:
            self._leave(sequence, State.ENDED)
        sequence.state = State.ENDED

    def plan(self) -> Plan | None:
        """Issue the next plan; None when ``depth`` plans are in flight or nothing can be computed now."""
        config = self.config
        if self.epoch == 0 or len(self._flights) >= config.depth:
            return None
        draft = Draft(self.step, self._budget)
        self._decode(draft, micro_batch(self._decoding(), self.step, config.stages))
        self._prefill(draft)
        self._admit(draft)
        if not draft.rows:
            self._decode(draft, early_batch(self._decoding(), config.stages))
        self._anew -= sum(row.count for row in draft.rows)
        return self._issue(draft) if draft.rows else None

    def complete(self, result: Result) -> list[Emission]:
        """Take the result of the oldest plan in flight.

        Raises:
            WrongResult: it is none.
        """
        flight = self._flights.land(result)
        for sequence in flight.sequences:
            sequence.in_flight -= 1
        emissions = self._confirm(flight, result)
        for sequence in flight.sequences:
            if sequence.in_flight == 0 and sequence in self._leaving:
                self._settle(sequence)
        return emissions

    # -- building a plan

    def _decoding(self) -> list[Sequence]:
        return [sequence for sequence in self.running if sequence.can_decode]

    def _decode(self, draft: Draft, batch: list[Sequence]) -> None:
        for sequence in batch:
            # A more urgent one of this batch may have preempted this one for its block.
            if sequence.state is State.RUNNING and self._make_room(sequence):
                draft.add_decode(sequence)

    def _prefill(self, draft: Draft) -> None:
        for sequence in sorted((s for s in self.running if s.prefilling), key=lambda s: s.order):
            if draft.budget:
                self._compute_known(draft, sequence)

    def _admit(self, draft: Draft) -> None:
        """Give slots and blocks to the most urgent waiting sequences.

        One block per running sequence stays free, or the newcomer would soon be preempted for their growth.
        """
        while draft.budget and self._slots:
            sequence = self.waiting.first(begun=self.holding)
            if sequence is None or not self.space.take(sequence, spare=len(self.running)):
                return
            self.waiting.remove(sequence)
            self.running[sequence] = None
            sequence.state = State.RUNNING
            sequence.slot = heapq.heappop(self._slots)
            if not sequence.started:
                sequence.cached = min(sequence.positions, sequence.prompt_length)
                self.counters.cached_tokens += sequence.cached
            draft.admit(sequence)
            self._compute_known(draft, sequence)

    def _compute_known(self, draft: Draft, sequence: Sequence) -> None:
        prompt_left = max(sequence.prompt_length - sequence.positions, 0)
        self.counters.prompt_tokens += min(draft.add_chunk(sequence), prompt_left)

    def _make_room(self, sequence: Sequence) -> bool:
        """Room for one more position, by preemption if need be; False when it has to wait or was preempted itself."""
        while not self.space.grow(sequence):
            if any(self.space.holds_alone(leaving) for leaving in self._leaving):
                return False  # results under way bring blocks back; preempting one more would be too much
            victim = max(self.running, key=lambda s: s.order)
            self.counters.preemptions += 1
            self._leave(victim, State.PREEMPTED)
            if victim is sequence:
                return False
        return True

    def _issue(self, draft: Draft) -> Plan:
        plan = Plan(self.epoch, self.step, tuple(draft.rows), tuple(draft.admits), tuple(self._releases))
        self._releases = []
        self._flights.add(Flight(self.epoch, self.step, draft.sequences, draft.drawing))
        self.step += 1
        for sequence in draft.sequences:
            self.space.cache.learn(sequence)
        return plan

    # -- taking a result

    def _confirm(self, flight: Flight, result: Result) -> list[Emission]:
        emissions = []
        for index, sequence in enumerate(flight.drawing):
            if sequence.state is State.ENDED:
                continue
            if index in result.bad:
                emissions.append(self._fail(sequence))
            else:
                emissions.append(self._draw(sequence, index, result))
        return emissions

    def _draw(self, sequence: Sequence, index: int, result: Result) -> Emission:
        token = result.ids[index * ID_BYTES : (index + 1) * ID_BYTES]
        logprobs = result.logprobs[index] if result.logprobs else None
        cached = sequence.cached if sequence.confirmed == sequence.resumed else 0
        sequence.confirm(token)
        self.counters.generation_tokens += 1
        finish = finish_reason(sequence)
        if finish:
            self.cancel(sequence)
        else:
            self.space.cache.learn(sequence)
        return Emission(sequence, token, finish, cached, () if logprobs is None else (logprobs,))

    def _fail(self, sequence: Sequence) -> Emission:
        self.counters.nonfinite += 1
        self.space.cache.forget(sequence)
        self.cancel(sequence)
        return Emission(sequence, b"", "error", message="the model gave no finite numbers for this request")

    # -- leaving

    def _leave(self, sequence: Sequence, state: State) -> None:
        del self.running[sequence]
        sequence.state = state
        self._leaving[sequence] = None
        if sequence.in_flight == 0:
            self._settle(sequence)

    def _settle(self, sequence: Sequence) -> None:
        """No plan in flight can write its blocks any more."""
        del self._leaving[sequence]
        self.space.free(sequence)
        heapq.heappush(self._slots, sequence.slot)
        self._releases.append(sequence.slot)
        if sequence.state is State.PREEMPTED:
            sequence.rewind()
            self.waiting.add(sequence)
