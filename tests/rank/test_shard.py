"""What each rank takes of a model, and which sizes are refused."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bireme_worker.models.errors import CannotShard
from bireme_worker.models.shard import HeadShard, Shard, VocabularyShard


@given(st.integers(1, 200_000), st.integers(1, 16))
def test_vocabulary_shards_cover_every_id_once_and_are_equally_wide(vocabulary: int, size: int) -> None:
    shards = [VocabularyShard.of(Shard(rank, size), vocabulary) for rank in range(size)]
    covered = [(one.start, one.start + one.count) for one in shards if one.count]
    assert covered[0][0] == 0
    assert covered[-1][1] == vocabulary
    assert all(before[1] == after[0] for before, after in itertools.pairwise(covered))
    assert {one.width for one in shards} == {shards[0].width}
    assert shards[0].width % 64 == 0


@given(st.integers(1, 8), st.integers(1, 8), st.integers(1, 8))
def test_every_query_head_finds_its_key_value_head(kv_heads: int, group: int, size: int) -> None:
    heads = kv_heads * group
    if heads % size:
        return
    for rank in range(size):
        shard = HeadShard.of(Shard(rank, size), heads, kv_heads)
        for place, head in enumerate(range(shard.query.start, shard.query.stop)):
            assert shard.kv.start + shard.kv_of_query[place] == head // group
        assert shard.kv_count == shard.kv.stop - shard.kv.start
        assert shard.kv_count <= shard.query_count


def test_key_value_heads_are_replicated_when_there_are_more_ranks() -> None:
    shards = [HeadShard.of(Shard(rank, 4), 8, 2) for rank in range(4)]
    assert [shard.kv for shard in shards] == [slice(0, 1), slice(0, 1), slice(1, 2), slice(1, 2)]


def test_heads_that_do_not_divide_are_refused_with_the_numbers_and_what_would_fit() -> None:
    expected = "9 attention heads do not divide by tensor parallelism 2: set parallelism.tensor to one of 1, 3, 9"
    with pytest.raises(CannotShard, match=expected):
        HeadShard.of(Shard(0, 2), 9, 3)
