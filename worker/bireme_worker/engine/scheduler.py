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
COMPANY: Final = 64
"""One newcomer in as many slots comes alone; with more slots, newcomers of a backlog share a step."""
PATIENCE: Final = 8
"""Steps for which a free slot waits for others."""


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """``slots``: sequences running at once. ``budget``: tokens of a step. ``depth``: plans in flight. ``speculation``:
    most tokens that are guessed of a sequence at a time. ``adapters``: names, in the ranks' order.
    ``encodes``: a prompt is computed whole in one step, keeps nothing, and ends with it.

    With no more slots than budget, decoding sequences can't take a whole step, so a prompt always advances. With a
    depth of at least ``stages`` no stage idles for want of a plan.
    """

    slots: int
    budget: int
    stages: int
    depth: int
    prefix_caching: bool = True
    speculation: int = 0
    adapters: tuple[str, ...] = ()
    encodes: bool = False

    def __post_init__(self) -> None:
        assert 1 <= self.slots <= self.budget
        assert 1 <= self.stages <= self.depth
        assert not (self.encodes and self.prefix_caching)


@dataclass(slots=True)
class Counters:
    """Totals since the process began."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    generation_tokens: int = 0
    preemptions: int = 0
    nonfinite: int = 0
    drafted: int = 0
    accepted: int = 0


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
        self._foremost: Sequence | None = None
        self._short_since = 0

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
        if self._anew <= 0 or self.config.encodes:
            return self.config.budget
        short = min(self.config.budget, max(SHORT_STEP, 2 * self.config.slots))
        return short if self._foremost is None else min(short, self._foremost.length)

    @property
    def settled(self) -> bool:
        """Nothing is in flight, and all that has begun has ended."""
        return not (self._flights or self.running or self._leaving or self.waiting.first(begun=True))

    def change_weights(self, salt: bytes) -> None:
        """Other weights compute from the next plan on: known ids stay, all that was computed goes. Nothing in flight.

        A step number is never used twice in an epoch, and ranks hear of every slot that became free. Steps are short
        until what waits now is computed, and the shortest is first: one token must come soon, whoever's it is.
        """
        assert not self._flights
        for sequence in list(self.running):
            self._leave(sequence, State.PREEMPTED)
        for sequence in self.waiting:
            sequence.labels.clear()
        self.space = KVSpace(self.space.pool.total + 1, salt, self.config.prefix_caching)
        self._anew = self.queued_prefill_tokens
        self._foremost = min(self.waiting, key=lambda sequence: sequence.length, default=None)

    def submit(self, request: Submit, now: float) -> Sequence:
        """Queue a request that ``admission`` let pass and whose ``outputs`` do not end it already."""
        self._serial += 1
        sequence = Sequence.of(request, now, self._serial, self.config.speculation)
        if request.adapter:
            sequence.adapter = 1 + self.config.adapters.index(request.adapter)
        self.waiting.add(sequence)
        return sequence

    def cancel(self, sequence: Sequence) -> None:
        """Nobody wants the rest. Works in every state, also after the end."""
        if sequence is self._foremost:
            self._foremost = None
        if sequence.state is State.WAITING:
            self.waiting.remove(sequence)
        elif sequence.state is State.RUNNING:
            self._leave(sequence, State.ENDED)
        sequence.state = State.ENDED

    def allow(self, sequence: Sequence, output: int, mask: bytes) -> None:
        """Output number ``output`` of a sequence that draws under masks may be one of these ids."""
        if sequence.mask and output >= sequence.confirmed:
            sequence.mask, sequence.mask_output = mask, output

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
        emissions = [*self._scores(flight, result), *self._confirm(flight, result)]
        for sequence in flight.sequences:
            if sequence.in_flight == 0 and sequence in self._leaving:
                self._settle(sequence)
        return emissions

    # -- building a plan

    def _decoding(self) -> list[Sequence]:
        return [sequence for sequence in self.running if sequence.can_decode]

    def _decode(self, draft: Draft, batch: list[Sequence]) -> None:
        room = (draft.budget - len(batch)) // 2  # the rest is for prompts
        for sequence in batch:
            # A more urgent one of this batch may have preempted this one for its block.
            if sequence.state is State.RUNNING and self._make_room(sequence):
                guesses = self._guess(sequence, room)
                room -= len(guesses) // ID_BYTES
                draft.add_decode(sequence, guesses)

    def _guess(self, sequence: Sequence, room: int) -> bytes:
        if sequence.speculation is None or sequence.in_flight:
            return b""
        room = min(room, sequence.request.max_tokens - sequence.confirmed - 1)
        guesses = sequence.speculation.draft(sequence.tokens, room)
        fitting = self.space.stretch(sequence, len(guesses) // ID_BYTES, spare=len(self.running)) if guesses else 0
        self.counters.drafted += fitting
        return guesses[: fitting * ID_BYTES]

    def _prefill(self, draft: Draft) -> None:
        for sequence in sorted((s for s in self.running if s.prefilling), key=lambda s: s.order):
            if draft.budget:
                self._compute_known(draft, sequence)

    def _admit(self, draft: Draft) -> None:
        """Give slots and blocks to the most urgent waiting sequences.

        One block per running sequence stays free, or the newcomer would soon be preempted for their growth.
        """
        if self._waits_for_company():
            return
        while draft.budget and self._slots:
            sequence, self._foremost = self._foremost or self.waiting.first(begun=self.holding), None
            if sequence is None or not self._place(sequence, draft.budget):
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

    def _waits_for_company(self) -> bool:
        """Whether few free slots wait for more, which a backlog will fill too: prompts make a step long for all."""
        few = self.config.slots // COMPANY
        if self._foremost is not None or not 0 < len(self._slots) < few <= len(self.waiting):
            self._short_since = self.step
            return False
        return self.step - self._short_since < PATIENCE

    def _place(self, sequence: Sequence, budget: int) -> bool:
        if sequence.awaits_mask:  # the next plan has it: HTTP processes say it as soon as they see the last id
            return False
        if self.config.encodes:
            sequence.target = sequence.length
            return sequence.length <= budget
        return self.space.take(sequence, spare=len(self.running))

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
        head = self.epoch, self.step, tuple(draft.rows), tuple(draft.admits), tuple(self._releases)
        plan = Plan(*head, draft.masks, draft.targets)
        self._releases = []
        scoring = tuple((s, start, len(draft.targets[s.slot]) // ID_BYTES) for s, start in draft.scoring)
        self._flights.add(Flight(self.epoch, self.step, draft.sequences, draft.drawing, scoring))
        self.step += 1
        for sequence in draft.sequences:
            self.space.cache.learn(sequence)
        return plan

    # -- taking a result

    def _confirm(self, flight: Flight, result: Result) -> list[Emission]:
        emissions, index = [], 0
        for sequence, guesses in flight.drawing:
            if sequence.state is not State.ENDED:
                emissions.append(
                    self._fail(sequence) if index in result.bad else self._draw(sequence, guesses, index, result)
                )
            index += 1 + len(guesses) // ID_BYTES
        return emissions

    def _scores(self, flight: Flight, result: Result) -> Iterator[Emission]:
        """Log probabilities of prompts; what was computed anew has been told before."""
        place = 0
        for sequence, start, count in flight.scoring:
            fresh = result.prompt[place + max(sequence.scored - start, 0) : place + count]
            place += count
            if fresh and sequence.state is not State.ENDED:
                sequence.scored = start + count
                yield Emission(sequence, b"", prompt=fresh)

    def _draw(self, sequence: Sequence, guesses: bytes, index: int, result: Result) -> Emission:
        cached = sequence.cached if sequence.confirmed == sequence.resumed else 0
        count, finish = _accept(sequence, guesses, index, result)
        self.counters.generation_tokens += 0 if self.config.encodes else count
        if guesses:
            self._rewind_guesses(sequence, count - 1)
        if finish:
            self.cancel(sequence)
        else:
            self.space.cache.learn(sequence)
        logprobs = tuple(one for one in result.logprobs[index : index + count] if one is not None)
        ids = result.ids[index * ID_BYTES : (index + count) * ID_BYTES]
        vector = result.vectors[index] if result.vectors else b""
        return Emission(sequence, ids, finish, cached, logprobs, vector=vector)

    def _rewind_guesses(self, sequence: Sequence, accepted: int) -> None:
        """Behind the last right guess nothing is computed: what was written there will be written anew."""
        self.counters.accepted += accepted
        assert sequence.speculation is not None
        sequence.speculation.judge(accepted, sequence.length)
        sequence.guessing = False
        sequence.issued = sequence.confirmed
        sequence.positions = sequence.length - 1

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


def _accept(sequence: Sequence, guesses: bytes, index: int, result: Result) -> tuple[int, str]:
    """Confirm draws from place ``index`` on while each equals its guess; how many, and why the sequence ends if so."""
    count, finish = 0, ""
    while True:
        token = result.ids[(index + count) * ID_BYTES : (index + count + 1) * ID_BYTES]
        right = token == guesses[count * ID_BYTES : (count + 1) * ID_BYTES]
        sequence.confirm(token)
        count += 1
        finish = finish_reason(sequence)
        # A draw that is not finite is drawn again, and fails, as the first of its row.
        if finish or not right or index + count in result.bad:
            return count, finish
