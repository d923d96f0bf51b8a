"""The radix search for a cut, against a sort."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bireme_worker.parallel.communicator import Communicator, SoloCommunicator
from bireme_worker.parallel.gate import EpochGate
from bireme_worker.sampling.threshold import LOWEST, ordered, threshold
from tests.support.communicators import on_all_ranks

SOLO = SoloCommunicator(EpochGate(1))
FLOATS = st.floats(width=32, allow_nan=False)


@given(st.lists(FLOATS, min_size=2, max_size=40))
def test_keys_order_like_the_floats(values: list[float]) -> None:
    scores = torch.tensor(values, dtype=torch.float32)
    keys = ordered(scores)
    assert torch.equal(keys[:, None] < keys[None, :], scores[:, None] < scores[None, :])
    assert torch.equal(keys[:, None] == keys[None, :], scores[:, None] == scores[None, :])


@settings(deadline=None)
@given(st.lists(FLOATS, min_size=1, max_size=60), st.integers(1, 70))
def test_counting_finds_the_kth_largest(values: list[float], k: int) -> None:
    keys = ordered(torch.tensor([values], dtype=torch.float32))
    found = threshold(keys, torch.ones_like(keys), torch.tensor([k]), SOLO)
    expected = sorted(keys[0].tolist(), reverse=True)[k - 1] if k <= len(values) else LOWEST
    assert found.tolist() == [expected]


@settings(deadline=None)
@given(st.lists(st.tuples(FLOATS, st.integers(0, 9)), min_size=1, max_size=60), st.integers(1, 200))
def test_weighing_finds_the_last_one_needed(pairs: list[tuple[float, int]], wanted: int) -> None:
    values, weights = zip(*pairs, strict=True)
    keys = ordered(torch.tensor([values], dtype=torch.float32))
    found = int(threshold(keys, torch.tensor([weights]), torch.tensor([wanted]), SOLO))
    reached = [key for key in keys[0].tolist() if int(torch.tensor([weights])[keys >= key].sum()) >= wanted]
    assert found == (max(reached) if reached else LOWEST)


def test_shards_find_the_cut_of_the_whole() -> None:
    torch.manual_seed(0)
    scores, weights = torch.randn(4, 192), torch.rand(4, 192)
    wanted = weights.sum(1) * torch.tensor([0.1, 0.5, 0.9, 2.0])
    expected = threshold(ordered(scores), weights, wanted, SOLO)

    def search(communicator: Communicator) -> torch.Tensor:
        part = slice(64 * communicator.rank, 64 * (communicator.rank + 1))
        return threshold(ordered(scores[:, part].contiguous()), weights[:, part], wanted, communicator)

    for found in on_all_ranks(3, search):
        assert torch.equal(found, expected)
