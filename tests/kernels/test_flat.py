"""Attention over gathered pages equals attention by pages: in Triton's interpreter, and compiled where there is a GPU.

Which rows of a step are gathered is chosen by their shapes.
"""

import pytest
import torch

from bireme_worker.kernels import flat
from bireme_worker.models.batch import Batch
from bireme_worker.models.kv_cache import BLOCK_SIZE, LayerCache, PackedLayerCache, pages_of
from bireme_worker.models.layers import flattening
from bireme_worker.models.layers.attention import PLAIN, Rule
from bireme_worker.models.layers.flattening import LEAST_CONTEXT, LEAST_TOKENS, MOST_ROWS, Flattening, Span
from bireme_worker.models.layers.paged import PagedBackend, PagedStep
from bireme_worker.models.shard import HeadShard, Shard
from tests.kernels.references import Paged, relative

WITH_GPU = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPE, LIMIT = (torch.bfloat16, 1e-2) if torch.cuda.is_available() else (torch.float32, 1e-5)
CPU = torch.device("cpu")


def runs_of(paged: Paged, rows: list[int], scratch: flat.Scratch) -> flat.Runs:
    spans, pages = [], []
    for row in rows:
        begin, length = sum(paged.counts[:row]), paged.lengths[row]
        spans.append((begin, begin + paged.counts[row], length))
        blocks = paged.table[paged.slots[row] : paged.slots[row] + 1, : -(-length // BLOCK_SIZE)]
        pages.append(pages_of(blocks).view(-1))
    return flat.Runs(spans, pages, scratch)


def test_each_sequence_sees_its_own_pages_up_to_each_token_and_no_place_that_is_not_written() -> None:
    paged = Paged.random([40, 3, 33], [150, 20, 33], (4, 2), 64, dtype=DTYPE, device=DEVICE)
    out = torch.full_like(paged.queries, float("nan"))
    runs = runs_of(paged, [0, 2], flat.Scratch())
    assert runs.fit(paged.cache)
    runs.attend(paged.queries, paged.cache, out)
    for mine in (slice(0, 40), slice(43, 76)):
        assert relative(out[mine], paged.expected()[mine]) < LIMIT
    assert bool(out[40:43].isnan().all()), "another row was written"


@pytest.mark.parametrize("size", [pytest.param(size, marks=WITH_GPU) for size in (64, 128)])
@pytest.mark.parametrize("heads", [(32, 8), (16, 4), (4, 2), (16, 1)])
@pytest.mark.parametrize(("count", "length"), [(512, 512), (512, 4000), (300, 333), (2048, 6000)])
def test_the_compiled_kernel_sees_the_prefix_and_nothing_after_each_token(
    count: int, length: int, heads: tuple[int, int], size: int
) -> None:
    paged = Paged.random([count], [length], heads, size, dtype=torch.bfloat16, device="cuda")
    out = torch.full_like(paged.queries, float("nan"))
    runs = runs_of(paged, [0], flat.Scratch())
    assert runs.fit(paged.cache)
    runs.attend(paged.queries, paged.cache, out)
    assert relative(out, paged.expected()) < 1e-2


def step_of(paged: Paged, monkeypatch: pytest.MonkeyPatch) -> PagedStep:
    """A step that gathers rows from 32 tokens and contexts of 64 on."""
    monkeypatch.setattr(flattening, "is_able", lambda *_: True)
    monkeypatch.setattr(flattening, "LEAST_TOKENS", 32)
    monkeypatch.setattr(flattening, "LEAST_CONTEXT", 64)
    single = paged.counts.count(1)
    ends = torch.tensor([0, *paged.counts]).cumsum(0)
    heads = paged.queries.shape[1], paged.cache.shape[3]
    size = paged.queries.shape[2]
    places = torch.zeros(len(paged.queries), dtype=torch.int64, device=DEVICE)
    batch = Batch(
        positions=places,
        slot_mapping=places,
        cu_seqlens=ends.to(DEVICE),
        seq_lens=torch.tensor(paged.lengths, device=DEVICE),
        slots=paged.slots,
        block_table=paged.table,
        single=single,
        spans=tuple(
            (int(ends[row]), int(ends[row + 1]), paged.lengths[row]) for row in range(single, len(paged.counts))
        ),
        lengths=tuple(paged.lengths[:single]),
    )
    backend = PagedBackend(HeadShard.of(Shard(0, 1), *heads), paged.queries.dtype, size=size)
    return backend.prepare(batch, torch.ones(size // 2, device=DEVICE))


@pytest.fixture
def mixed() -> Paged:
    """A decoding row, two long ones, and one between them that is too short."""
    return Paged.random([1, 34, 5, 32], [50, 90, 70, 64], (4, 2), 64, dtype=DTYPE, device=DEVICE)


def test_a_step_gathers_long_rows_and_leaves_the_others_to_their_pages(
    mixed: Paged, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = step_of(mixed, monkeypatch)
    assert step.runs is not None
    assert step.tiles is not None
    assert sorted({int(row) for row in step.tiles[: step.gathered, 0]}) == [1, 3]
    assert {int(row) for row in step.tiles[step.gathered :, 0]} == {2}
    out = step.attend(mixed.queries, LayerCache(mixed.cache)).view_as(mixed.queries)
    assert relative(out, mixed.expected()) < LIMIT


def test_a_step_without_memory_for_the_gather_goes_by_pages(mixed: Paged, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError

    step = step_of(mixed, monkeypatch)
    with monkeypatch.context() as patch:
        patch.setattr(torch, "empty", refuse)
        assert step.runs is not None
        assert not step.runs.fit(mixed.cache)
    out = step.attend(mixed.queries, LayerCache(mixed.cache)).view_as(mixed.queries)
    assert relative(out, mixed.expected()) < LIMIT


def test_a_cache_of_8_bits_goes_by_pages(mixed: Paged, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = mixed.cache.shape
    data = torch.zeros(shape, dtype=torch.uint8, device=DEVICE)
    cache = PackedLayerCache(data, torch.ones(shape[:4], device=DEVICE), "int8", DTYPE)
    step = step_of(mixed, monkeypatch)
    out = step.attend(mixed.queries, cache)
    assert bool((out == 0).all()), "a value of the scratch, or none at all"


def chosen(
    spans: list[Span],
    heads: tuple[int, int] = (32, 8),
    size: int = 128,
    rule: Rule = PLAIN,
    dtype: torch.dtype = torch.bfloat16,
) -> list[int]:
    return Flattening(HeadShard.of(Shard(0, 1), *heads), dtype, rule, size).chosen(spans, CPU)


LONG = (0, LEAST_TOKENS, LEAST_CONTEXT)


@pytest.fixture
def able(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flattening, "is_able", lambda *_: True)


@pytest.mark.usefixtures("able")
def test_rows_are_gathered_from_a_number_of_tokens_and_a_context_on() -> None:
    few, short = (0, LEAST_TOKENS - 1, LEAST_CONTEXT), (0, LEAST_TOKENS, LEAST_CONTEXT - 1)
    assert chosen([few, LONG, short, LONG]) == [1, 3]
    assert chosen([]) == []


@pytest.mark.usefixtures("able")
def test_of_many_rows_those_with_the_longest_contexts_are_gathered() -> None:
    lengths = [3000, 9000, 4000, 2048, 8000, 5000]
    assert len(lengths) == MOST_ROWS + 2
    assert chosen([(0, 200, length) for length in lengths]) == [1, 2, 4, 5]


@pytest.mark.usefixtures("able")
def test_what_was_not_measured_or_has_no_room_is_not_gathered() -> None:
    assert chosen([LONG], rule=Rule(stretch=1.2)) == [0]
    for rule in (Rule(window=100), Rule(cap=2.0), Rule(scale=0.1)):
        assert chosen([LONG], rule=rule) == []
    for size in (0, 80, 256):
        assert chosen([LONG], size=size) == []
    for heads in ((9, 3), (8, 8), (28, 4)):
        assert chosen([LONG], heads=heads) == []
    most = flattening.SCRATCH // (2 * 8 * 128 * 2)
    assert chosen([(0, 200, most)]) == [0]
    assert chosen([(0, 200, most + 1)]) == []


def test_no_cpu_and_no_exact_dtype_gathers_and_only_where_one_does_the_cache_leaves_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpu = torch.device("cuda", 0)
    assert chosen([LONG]) == []
    assert flattening.reserved_bytes(CPU, torch.bfloat16, "auto") == 0
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    assert flattening.reserved_bytes(gpu, torch.bfloat16, "auto") == flattening.SCRATCH
    assert flattening.reserved_bytes(gpu, torch.bfloat16, "fp8") == 0
    assert flattening.reserved_bytes(gpu, torch.float32, "auto") == 0
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 9))
    assert flattening.reserved_bytes(gpu, torch.bfloat16, "auto") == 0
