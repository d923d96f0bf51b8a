"""An executable model of a rank, and the reference that it is judged by.

The model stores token ids where a real rank stores keys and values, reads them back through the block table as attention
does, and draws each token from a hash of everything it read. So a wrong block, a stale block, a wrong position, a wrong
sample or wrong penalty counts change the output, which ``reference`` computes without blocks, plans or batches.
"""

from collections import Counter
from dataclasses import dataclass, field
from hashlib import blake2b

from bireme.wire.plan import Admit, Logprobs, Plan, Result, Row, Sampling, pack_ids, unpack_ids

BLOCK = 16
VOCABULARY = 50
"""Small, so that stop ids are drawn and prefixes are shared by chance too."""
PARROT = 3
"""With this seed a draw depends on the last token alone, so that outputs run in circles."""


class BrokenPlan(AssertionError):
    """The coordinator asked for something that no rank may do."""


def draw(ids: list[int], sampling: Sampling, output: int, counts: Counter[int]) -> int:
    """The next token after ``ids``: a pure function, as a real draw is. Stop ids are masked below ``min_tokens``."""
    if sampling.seed == PARROT:
        ids, output = ids[-1:], max(output, sampling.min_tokens) - output
    penalties = (sampling.repetition_penalty, sampling.frequency_penalty, sampling.presence_penalty)
    seen = sorted(counts.items()) if penalties != (1.0, 0.0, 0.0) else []
    text = repr((ids, sampling.seed, sampling.choice, output, penalties, seen)).encode()
    allowed = [i for i in range(VOCABULARY) if output >= sampling.min_tokens or i not in sampling.stop_ids]
    return allowed[int.from_bytes(blake2b(text, digest_size=8).digest(), "big") % len(allowed)]


def reference(
    prompt: list[int], sampling: Sampling, max_tokens: int, outputs: list[int] | None = None
) -> tuple[list[int], str]:
    """All output ids of a request, those given included, and its finish reason."""
    drawn = list(outputs or [])
    while True:
        if len(drawn) > sampling.min_tokens and drawn[-1] in sampling.stop_ids:
            return drawn, "stop"
        if len(drawn) >= max_tokens:
            return drawn, "length"
        ids = prompt + drawn
        drawn.append(draw(ids, sampling, len(drawn), Counter(ids)))


@dataclass
class _Slot:
    sampling: Sampling
    counts: Counter[int]
    table: list[int] = field(default_factory=list)
    last_sample: int | None = None


@dataclass(frozen=True)
class _Cell:
    """One position of one block: what was written, and by which step and slot."""

    position: int
    token: int
    step: int
    slot: int


class ModelRank:
    """Executes plans in order. ``poison`` holds token ids whose appearance makes the logits not finite."""

    def __init__(self, kv_blocks: int, slots: int, budget: int, poison: frozenset[int] = frozenset()) -> None:
        self.kv_blocks, self.slots_allowed, self.budget, self.poison = kv_blocks, slots, budget, poison
        self.slots: dict[int, _Slot] = {}
        self.cells: dict[tuple[int, int], _Cell] = {}
        self.next_step = 0
        self.rows_run = 0

    def run(self, plan: Plan) -> Result:
        """Execute ``plan`` and return the result that the last stage's rank 0 sends."""
        self._check(plan)
        self.next_step += 1
        for slot in plan.releases:
            self._require(slot in self.slots, f"slot {slot} is released but not in use")
            del self.slots[slot]
        for admit in plan.admits:
            self._admit(admit)
        for row in plan.rows:
            self._write(plan.step, row)
        drawn: list[int] = []
        bad: list[int] = []
        logprobs: list[Logprobs | None] = []
        # Every row reads after all have written: as on a device, rows of one step are not ordered among themselves.
        for row in plan.rows:
            ids = self._read(plan.step, row)
            if row.output < 0:
                continue
            for number in range(row.drafts + 1):
                known = ids[: len(ids) - row.drafts + number]
                if self.poison.intersection(known):
                    bad.append(len(drawn))
                drawn.append(self._sample(row, known, row.output + number))
                asked = self.slots[row.slot].sampling.logprobs
                chosen = -float(row.output + number)
                logprobs.append(None if asked < 0 else Logprobs(chosen, ((drawn[-1], -1.0),) * asked))
            if row.drafts:
                self._require(row.drafts < row.count, f"slot {row.slot} has {row.drafts} guesses in {row.count} ids")
                self.slots[row.slot].last_sample = None
        some = tuple(logprobs) if any(entry is not None for entry in logprobs) else ()
        return Result(plan.epoch, plan.step, pack_ids(drawn), tuple(bad), some)

    def _check(self, plan: Plan) -> None:
        self._require(plan.step == self.next_step, f"step {plan.step} follows {self.next_step - 1}")
        self._require(bool(plan.rows), "a plan without rows")
        tokens = sum(row.count for row in plan.rows)
        self._require(tokens <= self.budget, f"{tokens} tokens in a step of {self.budget}")
        slots = [row.slot for row in plan.rows]
        self._require(len(slots) == len(set(slots)), f"a slot has two rows: {slots}")

    def _admit(self, admit: Admit) -> None:
        self._require(1 <= admit.slot <= self.slots_allowed, f"slot {admit.slot} of 1 to {self.slots_allowed}")
        self._require(admit.slot not in self.slots, f"slot {admit.slot} is admitted twice")
        self.slots[admit.slot] = _Slot(admit.sampling, Counter(unpack_ids(admit.prompt + admit.outputs)))

    def _write(self, step: int, row: Row) -> None:
        self._require(row.slot in self.slots, f"slot {row.slot} has a row but was not admitted")
        slot = self.slots[row.slot]
        for block in row.blocks:
            self._require(1 <= block < self.kv_blocks, f"block {block} of 1 to {self.kv_blocks - 1}")
            self._require(block not in slot.table, f"slot {row.slot} has block {block} twice")
        slot.table.extend(row.blocks)
        ids = list(unpack_ids(row.ids))
        if not ids:
            self._require(slot.last_sample is not None, f"slot {row.slot} has no last sample")
            assert slot.last_sample is not None
            ids = [slot.last_sample]
        self._require(len(ids) == row.count >= 1, f"{row.count} tokens, {len(ids)} ids")
        for position, token in enumerate(ids, row.start):
            self._require(position // BLOCK < len(slot.table), f"slot {row.slot} has no block for position {position}")
            place = slot.table[position // BLOCK], position % BLOCK
            old = self.cells.get(place)
            self._require(old is None or old.step < step, f"two rows of step {step} write block {place[0]}")
            sharers = [other for other, held in self.slots.items() if other != row.slot and place[0] in held.table]
            self._require(not sharers, f"slot {row.slot} writes block {place[0]}, which slots {sharers} hold")
            self.cells[place] = _Cell(position, token, step, row.slot)

    def _read(self, step: int, row: Row) -> list[int]:
        self.rows_run += 1
        slot = self.slots[row.slot]
        ids = []
        for position in range(row.start + row.count):
            place = slot.table[position // BLOCK], position % BLOCK
            cell = self.cells.get(place)
            self._require(cell is not None, f"slot {row.slot} reads position {position}, which nobody wrote")
            assert cell is not None
            self._require(cell.position == position, f"slot {row.slot} reads {cell} at position {position}")
            self._require(cell.slot == row.slot or cell.step < step, f"slot {row.slot} reads {cell} in step {step}")
            ids.append(cell.token)
        return ids

    def _sample(self, row: Row, ids: list[int], output: int) -> int:
        slot = self.slots[row.slot]
        slot.last_sample = draw(ids, slot.sampling, output, slot.counts)
        slot.counts[slot.last_sample] += 1
        return slot.last_sample

    def _require(self, true: bool, message: str) -> None:
        if not true:
            raise BrokenPlan(message)
