"""Prefill attention of one sequence, over its pages gathered into one run of keys and values.

The copy engine (TMA) then brings whole tiles, which pages of 16 tokens do not allow. The gather costs a tenth or less;
its memory is one buffer of a rank, which all layers and sequences use in turn. No window, no cap; which sequences come
here is chosen in models/layers/flattening.py.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from bireme_worker.kernels.attention import Tile
from bireme_worker.kernels.launch import early, wait_first

TILE: Final = Tile(rows=64, span=64, warps=4, stages=3)
"""The best of 4 on an H200 (benchmarks/gpu/prefill_attention.py)."""


@triton.jit  # type: ignore[untyped-decorator]
def _step(
    q: tl.tensor,
    best: tl.tensor,
    total: tl.tensor,
    acc: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    start: tl.tensor,
    column: tl.tensor,
    sight: tl.tensor,
    scale: tl.tensor,
    span: tl.constexpr,
    masked: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    scores = tl.dot(q, keys.load([start, column]).T, input_precision="ieee") * scale
    if masked:
        seen = (start + tl.arange(0, span))[None, :] <= sight[:, None]
        scores = tl.where(seen, scores, -float("inf"))
    higher = tl.maximum(best, tl.max(scores, 1))
    weights = tl.exp2(scores - higher[:, None])
    shrink = tl.exp2(best - higher)
    total = total * shrink + tl.sum(weights, 1)
    part = values.load([start, column])
    acc = tl.dot(weights.to(q.dtype), part, acc * shrink[:, None], input_precision="ieee")
    return higher, total, acc


@triton.jit(do_not_specialize=["count", "prefix"])  # type: ignore[untyped-decorator]
def _attend(
    queries: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    out: tl.tensor,
    scale: tl.tensor,
    count: tl.tensor,
    prefix: tl.tensor,
    token_stride: tl.tensor,
    heads: tl.constexpr,
    group: tl.constexpr,
    tokens: tl.constexpr,
    size: tl.constexpr,
    span: tl.constexpr,
    early: tl.constexpr = False,
) -> None:
    wait_first(early)
    first = (tl.num_programs(0) - 1 - tl.program_id(0)) * tokens  # what sees most begins first
    head = tl.program_id(1)
    column = head * size
    m = tl.arange(0, tokens * group)
    query = first + m // group
    member = head * group + m % group
    d = tl.arange(0, size)
    live = (query < count)[:, None]
    token = query.to(tl.int64)
    q = tl.load(queries + (token * token_stride + member * size)[:, None] + d[None, :], mask=live, other=0.0)
    best = tl.full([tokens * group], -float("inf"), tl.float32)
    total = tl.zeros([tokens * group], tl.float32)
    acc = tl.zeros([tokens * group, size], tl.float32)
    full = (prefix + first + 1) // span * span  # what all queries of the tile see
    end = tl.minimum(prefix + first + tokens, prefix + count)
    sight = prefix + query
    for start in range(0, full, span):
        best, total, acc = _step(q, best, total, acc, keys, values, start, column, sight, scale, span, False)
    for start in range(full, end, span):
        best, total, acc = _step(q, best, total, acc, keys, values, start, column, sight, scale, span, True)
    place = ((token * heads * group + member) * size)[:, None] + d[None, :]
    tl.store(out + place, (acc / total[:, None]).to(out.dtype.element_ty), mask=live)


class Scratch:
    """A rank's buffer: it stays, and grows to powers of two, so that what it leaves behind is less than itself."""

    def __init__(self) -> None:
        self._data: torch.Tensor | None = None
        self._is_refused = False

    def view(self, shape: tuple[int, int], like: torch.Tensor) -> torch.Tensor | None:
        """So much of it, of the dtype and on the device of ``like``; None where memory was once too short."""
        count = shape[0] * shape[1]
        if self._is_refused:
            return None
        if self._data is None or len(self._data) < count:
            self._data = None
            try:
                self._data = torch.empty(triton.next_power_of_2(count), dtype=like.dtype, device=like.device)
            except torch.OutOfMemoryError:
                self._is_refused = True
                return None
        return self._data[:count].view(shape)


@dataclass(frozen=True, slots=True)
class _Run:
    """Where one sequence's tokens are, and its keys and values are gathered."""

    begin: int
    end: int
    length: int
    pages: torch.Tensor
    place: torch.Tensor
    parts: tuple[TensorDescriptor, TensorDescriptor]


class Runs:
    """A step's sequences that are gathered, for all layers; tiles and memory are set up by the first."""

    def __init__(self, spans: Sequence[tuple[int, int, int]], pages: Sequence[torch.Tensor], scratch: Scratch) -> None:
        """``pages [2 × blocks]`` of each span: as ``kv_cache.pages_of``, all keys before all values."""
        self._spans, self._pages, self._scratch = spans, pages, scratch
        self._made: list[_Run] = []

    def fit(self, cache: torch.Tensor) -> bool:
        """Whether there is memory for pages of ``cache [blocks, 2, page, kv heads, size]``."""
        if not self._made:
            lines = cache.shape[2] * cache.shape[3] * cache.shape[4]
            largest = max(len(pages) for pages in self._pages)
            whole = self._scratch.view((largest, lines), cache)
            if whole is None:
                return False
            width = cache.shape[3] * cache.shape[4], cache.shape[4]
            self._made = [
                _run(span, pages, whole[: len(pages)], width)
                for span, pages in zip(self._spans, self._pages, strict=True)
            ]
        return True

    def attend(self, queries: torch.Tensor, cache: torch.Tensor, out: torch.Tensor) -> None:
        """Fill ``out [tokens, heads, size]`` where the spans are; ``fit`` said yes."""
        rows = cache.view(cache.shape[0] * 2, -1)
        for run in self._made:
            torch.index_select(rows, 0, run.pages, out=run.place)
            mine = slice(run.begin, run.end)
            attend(queries[mine], run.parts, run.length, cache.shape[3], out[mine])


def _run(span: tuple[int, int, int], pages: torch.Tensor, place: torch.Tensor, width: tuple[int, int]) -> _Run:
    begin, end, length = span
    keys, values = place.view(2, -1, width[0]).unbind()
    parts = described(keys[:length], width[1]), described(values[:length], width[1])
    return _Run(begin, end, length, pages, place, parts)


def described(part: torch.Tensor, size: int, span: int = TILE.span) -> TensorDescriptor:
    """Keys or values ``[length, kv heads × size]`` for the copy engine; what lies behind their end is read as zeros."""
    return TensorDescriptor.from_tensor(part, [span, size])


def attend(
    queries: torch.Tensor,
    parts: tuple[TensorDescriptor, TensorDescriptor],
    length: int,
    kv_heads: int,
    out: torch.Tensor,
    tile: Tile = TILE,
) -> None:
    """``queries [tokens, heads, size]`` are the last of ``length`` positions, whose keys and values ``parts`` are."""
    count, heads, size = queries.shape
    tokens = tile.rows * kv_heads // heads
    _attend[(triton.cdiv(count, tokens), kv_heads)](
        queries,
        *parts,
        out,
        size**-0.5 * math.log2(math.e),
        count,
        length - count,
        queries.stride(0),
        heads=kv_heads,
        group=heads // kv_heads,
        tokens=tokens,
        size=size,
        span=tile.span,
        num_warps=tile.warps,
        num_stages=tile.stages,
        **early(),
    )
