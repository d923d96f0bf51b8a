"""Attention over the paged cache, without ever gathering keys and values.

One kernel serves decode and prefill: a program takes a tile of queries of one key-value head, with all query heads that
share it, and walks the pages of its row by the block table. In decode a tile is one token and the context may be split
over several programs, whose parts a second kernel joins; the grid depends on no length, so a graph can hold it.
Positions that are not written are never loaded.
"""

import math
from dataclasses import dataclass
from typing import Final

import torch
import triton
import triton.language as tl

from bireme_worker.kernels.launch import early, wait_first
from bireme_worker.models.kv_cache import BLOCK_SIZE
from bireme_worker.models.layers.attention import PLAIN, Rule

LEAST_ROWS: Final = 16
"""Rows of a matrix instruction: fewer are padded."""
PROGRAMS: Final = 512
"""Programs that keep the memory of a large GPU busy; with fewer rows the context is split until there are as many."""
MOST_SPLITS: Final = 32


@dataclass(frozen=True, slots=True)
class Tile:
    """How a prefill tile is cut: rows of queries times heads, positions at a time, warps, loads under way."""

    rows: int
    span: int
    warps: int
    stages: int


PREFILL = Tile(rows=128, span=32, warps=4, stages=2)
"""The best of 27 on an H200 (benchmarks/gpu/tiles.py)."""
EXACT: Final = Tile(rows=32, span=32, warps=4, stages=1)
"""In float32, where a product takes many more registers."""


@triton.jit  # type: ignore[untyped-decorator]
def _widened(values: tl.tensor, kind: tl.constexpr) -> tl.tensor:
    """Over float32, of which the hardware makes two halves at a time; straight from fp8 it makes one."""
    return values.to(tl.float32).to(kind) if values.dtype == tl.float8e4nv else values.to(kind)


@triton.jit  # type: ignore[untyped-decorator]
def _walk(
    q: tl.tensor,
    best: tl.tensor,
    total: tl.tensor,
    acc: tl.tensor,
    cache: tl.tensor,
    cache_scales: tl.tensor,
    pages: tl.tensor,
    begin: tl.tensor,
    end: tl.tensor,
    sight: tl.tensor,
    scale: tl.tensor,
    head: tl.tensor,
    heads: tl.constexpr,
    size: tl.constexpr,
    size_pad: tl.constexpr,
    span: tl.constexpr,
    page: tl.constexpr,
    window: tl.constexpr,
    cap: tl.constexpr,
    packed: tl.constexpr,
    masked: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Positions ``begin`` to ``end``, ``span`` at a time; not ``masked``: whole spans that every row of ``q`` sees.

    ``sight``: the last position that each row of ``q`` sees. The running maximum, sum and product are in and out.
    """
    d = tl.arange(0, size_pad)
    wide = d < size
    for start in range(begin, end, span):
        place = start + tl.arange(0, span)
        inside = place < end if masked else place >= 0
        block = tl.load(pages + place // page, mask=inside, other=0) if masked else tl.load(pages + place // page)
        line = (block * 2 * page + place % page) * heads + head
        keys_at = cache + (line * size)[None, :] + d[:, None]
        values_at = cache + (line * size)[:, None] + page * heads * size + d[None, :]
        if masked or size != size_pad:
            keys = tl.load(keys_at, mask=inside[None, :] & wide[:, None], other=0.0)
            values = tl.load(values_at, mask=inside[:, None] & wide[None, :], other=0.0)
        else:
            keys = tl.load(keys_at)
            values = tl.load(values_at)
        scores = tl.dot(q, _widened(keys, q.dtype), input_precision="ieee") * scale
        if packed:
            scores *= tl.load(cache_scales + line, mask=inside, other=0.0)[None, :]
        if cap > 0:  # the scale has 1 / cap, and tanh(x) = 1 - 2 / (exp(2x) + 1)
            scores = (1 - 2 / (tl.exp(2 * scores) + 1)) * (cap * 1.4426950408889634)
        if masked:
            seen = inside[None, :] & (place[None, :] <= sight[:, None])
            if window:
                seen = seen & (place[None, :] > sight[:, None] - window)
            scores = tl.where(seen, scores, -float("inf"))
        higher = tl.maximum(best, tl.max(scores, 1))
        base = tl.where(higher == -float("inf"), 0.0, higher) if masked else higher
        weights = tl.exp2(scores - base[:, None])
        shrink = tl.exp2(best - base)
        total = total * shrink + tl.sum(weights, 1)
        if packed:
            weights *= tl.load(cache_scales + line + page * heads, mask=inside, other=0.0)[None, :]
        acc = tl.dot(weights.to(q.dtype), _widened(values, q.dtype), acc * shrink[:, None], input_precision="ieee")
        best = higher
    return best, total, acc


@triton.jit  # type: ignore[untyped-decorator]
def _attend(
    queries: tl.tensor,
    cache: tl.tensor,
    cache_scales: tl.tensor,
    table: tl.tensor,
    slots: tl.tensor,
    lengths: tl.tensor,
    tiles: tl.tensor,
    out: tl.tensor,
    parts: tl.tensor,
    sums: tl.tensor,
    scale: tl.tensor,
    token_stride: tl.tensor,
    table_stride: tl.tensor,
    heads: tl.constexpr,
    group: tl.constexpr,
    group_pad: tl.constexpr,
    tokens: tl.constexpr,
    size: tl.constexpr,
    size_pad: tl.constexpr,
    span: tl.constexpr,
    splits: tl.constexpr,
    single: tl.constexpr,
    page: tl.constexpr,
    window: tl.constexpr,
    cap: tl.constexpr,
    packed: tl.constexpr,
    early: tl.constexpr = False,
) -> None:
    wait_first(early)
    tile = tl.program_id(0)
    head = tl.program_id(1)
    split = tl.program_id(2)
    if single:
        row = tile
        first = tile
        count = 1
        limit = tl.load(lengths + row).to(tl.int32)
        position = limit - 1
    else:
        row = tl.load(tiles + tile * 4).to(tl.int32)
        first = tl.load(tiles + tile * 4 + 1).to(tl.int32)
        position = tl.load(tiles + tile * 4 + 2).to(tl.int32)
        count = tl.load(tiles + tile * 4 + 3).to(tl.int32)
        limit = position + count
    # With a window, nothing before the first query's is loaded.
    floor = tl.maximum(position + 1 - window, 0) // span * span if window else 0
    share = tl.cdiv(tl.cdiv(limit - floor, splits), span) * span
    begin = floor + split * share
    end = tl.minimum(begin + share, limit)
    if begin >= end:
        return
    m = tl.arange(0, tokens * group_pad)
    query = m // group_pad
    member = m % group_pad
    d = tl.arange(0, size_pad)
    wide = d < size
    live = (query < count) & (member < group)
    token = (first + query).to(tl.int64)
    q_at = token * token_stride + (head * group + member) * size
    q = tl.load(queries + q_at[:, None] + d[None, :], mask=live[:, None] & wide[None, :], other=0.0)
    pages = table + tl.load(slots + row) * table_stride
    best = tl.full([tokens * group_pad], -float("inf"), tl.float32)
    total = tl.zeros([tokens * group_pad], tl.float32)
    acc = tl.zeros([tokens * group_pad, size_pad], tl.float32)
    # What all queries of the tile see needs no masks, which cost as much as the products.
    full = begin if window else tl.maximum(tl.minimum(position + 1, end) // span * span, begin)
    sight = position + query
    best, total, acc = _walk(
        q, best, total, acc, cache, cache_scales, pages, begin, full, sight, scale, head,
        heads, size, size_pad, span, page, window, cap, packed, False,
    )  # fmt: skip
    best, total, acc = _walk(
        q, best, total, acc, cache, cache_scales, pages, full, end, sight, scale, head,
        heads, size, size_pad, span, page, window, cap, packed, True,
    )  # fmt: skip
    acc = acc / total[:, None]
    number = token * (heads * group) + head * group + member
    if splits == 1:
        tl.store(out + number[:, None] * size + d[None, :], acc.to(out.dtype.element_ty), mask=live[:, None] & wide)
    else:
        tl.store(parts + (number * splits + split)[:, None] * size + d[None, :], acc, mask=live[:, None] & wide)
        tl.store(sums + number * splits + split, best + tl.log2(total), mask=live)


@triton.jit  # type: ignore[untyped-decorator]
def _join(
    parts: tl.tensor,
    sums: tl.tensor,
    lengths: tl.tensor,
    out: tl.tensor,
    heads: tl.constexpr,
    size: tl.constexpr,
    size_pad: tl.constexpr,
    span: tl.constexpr,
    splits: tl.constexpr,
    window: tl.constexpr,
    early: tl.constexpr = False,
) -> None:
    wait_first(early)
    row = tl.program_id(0)
    number = row * heads + tl.program_id(1)
    limit = tl.load(lengths + row).to(tl.int32)
    read = limit - (tl.maximum(limit - window, 0) // span * span if window else 0)
    share = tl.cdiv(tl.cdiv(read, splits), span) * span
    split = tl.arange(0, splits)
    d = tl.arange(0, size_pad)
    there = split * share < read
    logs = tl.load(sums + number * splits + split, mask=there, other=-float("inf"))
    weights = tl.exp2(logs - tl.max(logs, 0))
    weights = weights / tl.sum(weights, 0)
    at = parts + (number * splits + split)[:, None] * size + d[None, :]
    values = tl.load(at, mask=there[:, None] & (d < size)[None, :], other=0.0)
    joined = tl.sum(values * weights[:, None], 0)
    tl.store(out + number * size + d, joined.to(out.dtype.element_ty), mask=d < size)


@dataclass(frozen=True, slots=True)
class Pages:
    """Where the rows of a step find their keys: whole block ``table``, ``slots`` and context ``lengths`` per row."""

    table: torch.Tensor
    slots: torch.Tensor
    lengths: torch.Tensor


def splits_of(rows: int, kv_heads: int) -> int:
    """Into how many programs each context is cut; a power of two that depends on the number of rows alone."""
    wanted = PROGRAMS // max(rows * kv_heads, 1)
    return 1 if wanted < 2 else min(1 << (wanted.bit_length() - 1), MOST_SPLITS)


def tile_tokens(heads: int, kv_heads: int, dtype: torch.dtype) -> int:
    """Query tokens of a prefill tile."""
    group: int = triton.next_power_of_2(heads // kv_heads)
    return max(_tile(dtype).rows // group, 1)


def _tile(dtype: torch.dtype) -> Tile:
    return EXACT if dtype == torch.float32 else PREFILL


def decode(
    queries: torch.Tensor,
    cache: torch.Tensor,
    pages: Pages,
    out: torch.Tensor,
    rule: Rule = PLAIN,
    scales: torch.Tensor | None = None,
) -> None:
    """One token per row: ``out [rows, heads, size]`` for ``queries [rows, heads, size]`` (rows may lie apart).

    ``scales`` are those of a ``cache`` of 8 bits.
    """
    rows, heads, size = queries.shape
    kv_heads = cache.shape[3]
    splits = splits_of(rows, kv_heads)
    exact = queries.dtype == torch.float32
    span = 32 if splits > 1 or exact else 64
    scratch = (rows, heads, splits, size) if splits > 1 else (1, 1, 1, 1)
    parts = torch.empty(scratch, dtype=torch.float32, device=out.device)
    sums = torch.empty(scratch[:3], dtype=torch.float32, device=out.device)
    group_pad = max(triton.next_power_of_2(heads // kv_heads), LEAST_ROWS)
    tile = Tile(group_pad, span, warps=4, stages=1 if exact else 3)
    _launch(queries, (cache, scales), pages, pages.lengths, out, (parts, sums), (rows, kv_heads, splits), tile, rule)
    if splits > 1:
        _join[(rows, heads)](
            parts,
            sums,
            pages.lengths,
            out,
            heads=heads,
            size=size,
            size_pad=triton.next_power_of_2(size),
            span=span,
            splits=splits,
            window=rule.window,
            num_warps=2,
            **early(),
        )


def prefill(
    queries: torch.Tensor,
    cache: torch.Tensor,
    pages: Pages,
    tiles: torch.Tensor,
    out: torch.Tensor,
    rule: Rule = PLAIN,
    scales: torch.Tensor | None = None,
) -> None:
    """Rows of any length: ``tiles [tiles, 4]`` has row, first token, its position, and tokens of each tile.

    ``queries`` and ``out`` hold all tokens of the step; those of no tile are left alone.
    """
    grid = (len(tiles), cache.shape[3], 1)
    _launch(queries, (cache, scales), pages, tiles, out, (out, out), grid, _tile(queries.dtype), rule)


def _launch(
    queries: torch.Tensor,
    stored: tuple[torch.Tensor, torch.Tensor | None],
    pages: Pages,
    tiles: torch.Tensor,
    out: torch.Tensor,
    scratch: tuple[torch.Tensor, torch.Tensor],
    grid: tuple[int, int, int],
    tile: Tile,
    rule: Rule,
) -> None:
    _, heads, size = queries.shape
    cache, scales = stored
    kv_heads = cache.shape[3]
    single = tiles is pages.lengths
    group_pad = tile.rows if single else triton.next_power_of_2(heads // kv_heads)
    _attend[grid](
        queries,
        cache,
        out if scales is None else scales,
        pages.table,
        pages.slots,
        pages.lengths,
        tiles,
        out,
        *scratch,
        (rule.scale or size**-0.5) * (1 / rule.cap if rule.cap else math.log2(math.e)),
        queries.stride(0),
        pages.table.stride(0),
        heads=kv_heads,
        group=heads // kv_heads,
        group_pad=group_pad,
        tokens=1 if single else tile_tokens(heads, kv_heads, queries.dtype),
        size=size,
        size_pad=max(triton.next_power_of_2(size), 16),
        span=tile.span,
        splits=grid[2],
        single=single,
        page=BLOCK_SIZE,
        window=rule.window,
        cap=rule.cap,
        packed=scales is not None,
        num_warps=tile.warps,
        num_stages=tile.stages,
        **early(),
    )
