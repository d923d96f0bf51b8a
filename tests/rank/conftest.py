"""Gates of epochs for tests, closed with all their sockets at the end of each."""

from collections.abc import Callable, Iterator

import pytest

from bireme_worker.parallel.gate import EpochGate

MakeGate = Callable[[int], EpochGate]


@pytest.fixture
def make_gate() -> Iterator[MakeGate]:
    gates: list[EpochGate] = []

    def make(epoch: int) -> EpochGate:
        gates.append(EpochGate(epoch))
        return gates[-1]

    yield make
    for gate in gates:
        gate.close()
