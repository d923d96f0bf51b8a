"""Sequences without a slot, most urgent first. One that was preempted keeps its place by its old order."""

from bisect import bisect_left, insort
from collections.abc import Iterator

from bireme_worker.engine.sequence import Sequence


class WaitingQueue:
    """Strict order: nobody overtakes the first one, so it gets its turn however large it is."""

    def __init__(self) -> None:
        self._sequences: list[Sequence] = []

    def __len__(self) -> int:
        return len(self._sequences)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._sequences)

    def add(self, sequence: Sequence) -> None:
        """Put a sequence in its place."""
        insort(self._sequences, sequence, key=_order)

    def first(self, *, begun: bool) -> Sequence | None:
        """The most urgent one, among those that have begun if ``begun``."""
        return next((sequence for sequence in self._sequences if sequence.begun or not begun), None)

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out, wherever it stands."""
        del self._sequences[bisect_left(self._sequences, sequence.order, key=_order)]


def _order(sequence: Sequence) -> tuple[float, int]:
    return sequence.order
