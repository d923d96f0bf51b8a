"""Work that is cut to what a core's cache holds: cutting changes nothing, and nothing is left out."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from bireme_worker.models.kv_cache import BLOCK_SIZE
from bireme_worker.models.layers.attention import group_rows
from bireme_worker.sampling.noise import Generators, gumbel


@given(st.lists(st.integers(1, 500), max_size=60).map(sorted), st.integers(1, 64))
def test_rows_are_attended_in_parts_that_fit(lengths: list[int], blocks: int) -> None:
    cuts = group_rows(lengths, blocks)
    assert [row for begin, end in cuts for row in range(begin, end)] == list(range(len(lengths)))
    for begin, end in cuts:
        padded = (end - begin) * -(-lengths[end - 1] // BLOCK_SIZE)
        assert end - begin == 1 or padded <= blocks


def test_noise_of_many_rows_is_that_of_each_row() -> None:
    columns = [torch.arange(20) * 77 + number for number in range(4)]
    together = gumbel(Generators(*columns), 64, 128)
    for row in range(20):
        alone = gumbel(Generators(*(column[row : row + 1] for column in columns)), 64, 128)
        assert torch.equal(together[row : row + 1], alone)
