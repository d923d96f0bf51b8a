"""The plan under construction: rows are added while the token budget lasts."""

from dataclasses import dataclass, field

from bireme.wire.plan import Admit, Row
from bireme_worker.engine.sequence import ID_BYTES, Sequence, counts


@dataclass(slots=True)
class Draft:
    """``budget``: tokens left in step ``step``. ``drawing``: who draws in it, in row order, and what is guessed."""

    step: int
    budget: int
    rows: list[Row] = field(default_factory=list)
    sequences: list[Sequence] = field(default_factory=list)
    drawing: list[tuple[Sequence, bytes]] = field(default_factory=list)
    admits: list[Admit] = field(default_factory=list)
    masks: dict[int, bytes] = field(default_factory=dict)
    targets: dict[int, bytes] = field(default_factory=dict)
    scoring: list[tuple[Sequence, int]] = field(default_factory=list)

    def admit(self, sequence: Sequence) -> None:
        """The sequence has a new slot. Penalties alone look at earlier ids, so only they pay for sending them."""
        sampling = sequence.sampling
        prompt, outputs = (sequence.request.prompt, sequence.outputs) if counts(sampling) else (b"", b"")
        self.admits.append(Admit(sequence.slot, sampling, prompt, outputs, sequence.adapter))

    def add_decode(self, sequence: Sequence, guesses: bytes = b"") -> None:
        """Compute the last token, which may be a sample under way, and draw the next; then each guess likewise."""
        ids = b"" if sequence.in_flight else sequence.ids(sequence.length - 1, 1) + guesses
        self._add(sequence, 1 + len(guesses) // ID_BYTES, ids, draws=True, guesses=guesses)

    def add_chunk(self, sequence: Sequence) -> int:
        """Compute known tokens, as many as the budget allows; the last chunk draws. Returns how many."""
        start, count = sequence.positions, min(sequence.target - sequence.positions, self.budget)
        if sequence.scores and (scored := min(count, sequence.prompt_length - 1 - start)) > 0:
            self.targets[sequence.slot] = sequence.ids(start + 1, scored)
            self.scoring.append((sequence, start))
        self._add(sequence, count, sequence.ids(start, count), draws=start + count == sequence.target)
        return count

    def _add(self, sequence: Sequence, count: int, ids: bytes, *, draws: bool, guesses: bytes = b"") -> None:
        new = tuple(sequence.blocks[sequence.blocks_sent :])
        output, drafts = sequence.issued if draws else -1, len(guesses) // ID_BYTES
        self.rows.append(Row(sequence.slot, sequence.positions, count, ids, new, output, drafts))
        self.sequences.append(sequence)
        self.budget -= count
        sequence.blocks_sent = len(sequence.blocks)
        sequence.positions += count
        sequence.in_flight += 1
        sequence.last_step = self.step
        if draws:
            sequence.issued += 1 + drafts
            sequence.guessing = drafts > 0
            self.drawing.append((sequence, guesses))
            if sequence.mask:
                self.masks[sequence.slot] = sequence.mask
