"""The plan under construction: rows are added while the token budget lasts."""

from dataclasses import dataclass, field

from bireme.wire.plan import Admit, Row
from bireme_worker.engine.sequence import Sequence


@dataclass(slots=True)
class Draft:
    """``budget``: tokens left in step ``step``. ``drawing``: the sequences, in row order, whose row draws a token."""

    step: int
    budget: int
    rows: list[Row] = field(default_factory=list)
    sequences: list[Sequence] = field(default_factory=list)
    drawing: list[Sequence] = field(default_factory=list)
    admits: list[Admit] = field(default_factory=list)

    def admit(self, sequence: Sequence) -> None:
        """The sequence has a new slot. Penalties alone look at earlier ids, so only they pay for sending them."""
        sampling = sequence.sampling
        counted = (
            sampling.repetition_penalty != 1.0 or sampling.frequency_penalty != 0.0 or sampling.presence_penalty != 0.0
        )
        prompt, outputs = (sequence.request.prompt, sequence.outputs) if counted else (b"", b"")
        self.admits.append(Admit(sequence.slot, sampling, prompt, outputs))

    def add_decode(self, sequence: Sequence) -> None:
        """Compute the slot's last sample and draw the next token."""
        self._add(sequence, 1, b"", draws=True)

    def add_chunk(self, sequence: Sequence) -> int:
        """Compute known tokens, as many as the budget allows; the last chunk draws. Returns how many."""
        start, count = sequence.positions, min(sequence.target - sequence.positions, self.budget)
        self._add(sequence, count, sequence.ids(start, count), draws=start + count == sequence.target)
        return count

    def _add(self, sequence: Sequence, count: int, ids: bytes, draws: bool) -> None:
        new = tuple(sequence.blocks[sequence.blocks_sent :])
        output = sequence.issued if draws else -1
        self.rows.append(Row(sequence.slot, sequence.positions, count, ids, new, output))
        self.sequences.append(sequence)
        self.budget -= count
        sequence.blocks_sent = len(sequence.blocks)
        sequence.positions += count
        sequence.in_flight += 1
        sequence.last_step = self.step
        if draws:
            sequence.issued += 1
            self.drawing.append(sequence)
