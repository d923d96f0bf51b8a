"""Attention's kernels against the ceilings of this very card, measured a moment before: A14."""

import statistics
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch

from benchmarks.gpu.job import Bench
from benchmarks.gpu.kernel_tables import graph_us
from bireme_worker.models.batch import Batch
from bireme_worker.models.kv_cache import BLOCK_SIZE, LayerCache
from bireme_worker.models.layers.paged import PagedBackend, PagedStep
from bireme_worker.models.shard import HeadShard, Shard

HEADS, KV_HEADS, SIZE = 32, 8, 128
COPY_BYTES = 4 << 30
SIDE = 8192
DECODES = ((256, 800), (32, 4000), (8, 20_000), (1, 4000))
PREFILLS = ((1, 8192), (16, 512), (4, 2048))
TURNS = 15
OUT_OF_CACHE = 256 << 20
"""Bytes that the L2 does not hold."""


@dataclass(frozen=True)
class Ground:
    """Bytes and multiply-adds (two each) per second."""

    bench: Bench
    bandwidth: float
    rate: float


@contextmanager
def ground(bench: Bench) -> Iterator[Ground]:
    """The ceilings: a large copy, bytes read and written, and a large product."""
    source = torch.empty(COPY_BYTES, dtype=torch.uint8, device="cuda").random_(0, 255)
    target = torch.empty_like(source)
    copied = 2 * COPY_BYTES / _seconds(partial(target.copy_, source))
    del source, target
    left, right = (torch.randn((SIDE, SIDE), device="cuda", dtype=torch.bfloat16) for _ in range(2))
    rate = 2 * SIDE**3 / _seconds(partial(torch.matmul, left, right))
    print(f"copy {copied / 1e12:.2f} TB/s, product {rate / 1e12:.0f} TFLOP/s", flush=True)
    yield Ground(bench, copied, rate)


def _seconds(call: Callable[[], object]) -> float:
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    times = []
    for _ in range(TURNS):
        begin.record()
        call()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 1e3)
    return float(statistics.median(times[5:]))


def _all(on: Ground) -> None:
    shares = {f"{rows} × {context}": _decode(on, rows, context) for rows, context in DECODES}
    note = ", ".join(f"{name} {share:.0f} %" for name, share in shares.items())
    on.bench.measured("A14.decode", next(iter(shares.values())), f"{note}; ceiling {on.bandwidth / 1e12:.2f} TB/s")
    shares = {f"{rows} × {tokens}": _prefill(on, rows, tokens) for rows, tokens in PREFILLS}
    note = ", ".join(f"{name} {share:.0f} %" for name, share in shares.items())
    on.bench.measured("A14.prefill", next(iter(shares.values())), f"{note}; ceiling {on.rate / 1e12:.0f} TFLOP/s")


def _step(rows: int, context: int, new: int, size: int = SIZE) -> PagedStep:
    """A step as the model makes it: ``new`` tokens at the end of each row, whose blocks lie anywhere.

    With ``size`` 0 all rows are read by their pages.
    """
    blocks = -(-context // BLOCK_SIZE)
    places = torch.arange(context - new, context, device="cuda").repeat(rows)
    spans = tuple((row * new, (row + 1) * new, context) for row in range(rows)) if new > 1 else ()
    batch = Batch(
        positions=places,
        slot_mapping=places,
        cu_seqlens=torch.arange(rows + 1, device="cuda") * new,
        seq_lens=torch.full((rows,), context, device="cuda"),
        slots=torch.arange(rows, device="cuda"),
        block_table=torch.randperm(rows * blocks, device="cuda").view(rows, blocks) + 1,
        single=0 if spans else rows,
        spans=spans,
        lengths=() if spans else (context,) * rows,
    )
    backend = PagedBackend(HeadShard.of(Shard(0, 1), HEADS, KV_HEADS), torch.bfloat16, size=size)
    return backend.prepare(batch, torch.ones(SIZE // 2, device="cuda"))


def _caches(rows: int, context: int, count: int) -> list[LayerCache]:
    shape = (rows * -(-context // BLOCK_SIZE) + 1, 2, BLOCK_SIZE, KV_HEADS, SIZE)
    return [LayerCache(torch.randn(shape, device="cuda", dtype=torch.bfloat16)) for _ in range(count)]


def _decode(on: Ground, rows: int, context: int) -> float:
    """Percent of the bandwidth, keys and values counted; several caches in turn, so that none stays in the L2."""
    size = rows * context * 2 * KV_HEADS * SIZE * 2
    caches = _caches(rows, context, max(2, min(24, -(-OUT_OF_CACHE // size))))
    queries = torch.randn((rows, HEADS, SIZE), device="cuda", dtype=torch.bfloat16)
    step = _step(rows, context, 1)
    us = graph_us(lambda number: step.attend(queries, caches[number % len(caches)]), 24)
    return 100 * size / (us * 1e-6) / on.bandwidth


def _prefill(on: Ground, rows: int, tokens: int, size: int = SIZE) -> float:
    """Percent of the matrix rate, causal operations counted."""
    caches = _caches(rows, tokens, 2)
    queries = torch.randn((rows * tokens, HEADS, SIZE), device="cuda", dtype=torch.bfloat16)
    step = _step(rows, tokens, tokens, size)
    us = graph_us(lambda number: step.attend(queries, caches[number % 2]), 8)
    operations = rows * 2 * 2 * HEADS * SIZE * tokens * (tokens + 1) / 2
    return 100 * operations / (us * 1e-6) / on.rate


CASES: Mapping[str, Callable[[Ground], None]] = {"A14": _all}
