"""Few rows times a matrix of 8- or 4-bit integers, which stays packed: the matrix is read once, as memory gives it.

Inputs come in spans that share a scale. Of 4-bit codes a run of two spans is packed into one span of bytes, the lower
halves first, so that both halves meet inputs that lie side by side (``quant/gpu.py`` lays them so). Sums are those of
float32, and scales are applied to sums, not to weights.

One row has a kernel of its own, without matrix instructions. More rows make the matrix their left operand: few outputs
are cut along the inputs too until all multiprocessors have work; the last to finish a tile adds up its parts in order.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import torch
import triton
import triton.language as tl

from bireme_worker.kernels.launch import early, wait_first

PROCESSORS: Final = 132
"""Multiprocessors of the GPU that tilings were measured on, where there is none to ask."""
SHARED_BYTES: Final = 227 << 10
"""What a program may take of one's memory there."""
MOST_TILES: Final = 1 << 16
"""Tiles of one product that may be cut along their inputs."""


@dataclass(frozen=True, slots=True)
class Packed:
    """``codes [outputs, bytes]``, ``scales`` and maybe ``zeros [outputs, groups]``; ``span`` inputs share a scale."""

    bits: int
    codes: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor | None
    span: int

    @property
    def inputs(self) -> int:
        """Columns of the matrix."""
        return self.codes.shape[1] * 8 // self.bits


@dataclass(frozen=True, slots=True)
class Tiling:
    """``outputs`` × ``rows`` of one program, programs along the inputs (``splits``), and how it is compiled."""

    outputs: int
    rows: int
    splits: int
    warps: int
    stages: int


@dataclass(frozen=True, slots=True)
class Room:
    """Of a GPU: its multiprocessors, and what a program may take of one's memory."""

    processors: int = PROCESSORS
    shared_bytes: int = SHARED_BYTES


@lru_cache
def room_of(device: torch.device) -> Room:
    """That of ``device``; the interpreter takes a large GPU's."""
    if device.type != "cuda":
        return Room()
    found = torch.cuda.get_device_properties(device)
    return Room(found.multi_processor_count, found.shared_memory_per_block_optin)  # type: ignore[attr-defined]


@lru_cache
def arrivals(device: torch.device) -> torch.Tensor:
    """Counters of finished parts, zero between kernels. Made before any graph is captured."""
    return torch.zeros(MOST_TILES, dtype=torch.int32, device=device)


@triton.jit  # type: ignore[untyped-decorator]
def _line_part(
    x: tl.tensor,
    codes: tl.tensor,
    scale_at: tl.tensor,
    zero_at: tl.tensor,
    at: tl.tensor,
    span: tl.constexpr,
    inputs: tl.constexpr,
    groups: tl.constexpr,
    middle: tl.constexpr,
    has_zeros: tl.constexpr,
) -> tl.tensor:
    """Products of one row, ``[outputs, spans, span]``, for ``codes`` of the spans numbered ``at``."""
    spans_all: tl.constexpr = inputs // span
    inside = at < spans_all
    places = at[:, None] * span + tl.arange(0, span)[None, :]
    values = tl.load(x + places[None, :, :], mask=inside[None, :, None], other=0.0)
    group = (at // (spans_all // groups))[None, :]
    scales = tl.load(scale_at[:, None] + group, mask=inside[None, :], other=0.0).to(tl.float32)
    weights = codes.to(tl.float32)
    if has_zeros:
        weights -= tl.load(zero_at[:, None] + group, mask=inside[None, :], other=0).to(tl.float32)[:, :, None]
    else:
        weights -= middle
    return weights * values.to(tl.float32) * scales[:, :, None]


@triton.jit  # type: ignore[untyped-decorator]
def _line(
    x: tl.tensor,
    codes: tl.tensor,
    scales: tl.tensor,
    zeros: tl.tensor,
    y: tl.tensor,
    outputs: tl.tensor,
    bits: tl.constexpr,
    inputs: tl.constexpr,
    groups: tl.constexpr,
    span: tl.constexpr,
    spans: tl.constexpr,
    tile: tl.constexpr,
    has_zeros: tl.constexpr,
    early: tl.constexpr = False,
) -> None:
    wait_first(early)
    output = tl.program_id(0) * tile + tl.arange(0, tile)
    kept = tl.minimum(output, outputs - 1).to(tl.int64)
    runs: tl.constexpr = inputs * bits // 8 // span
    line = codes + kept * (runs * span)
    scale_at = scales + kept * groups
    zero_at = zeros + kept * groups
    acc = tl.zeros([tile, spans, span], tl.float32)
    for start in range(0, runs, spans):
        run = start + tl.arange(0, spans)
        at = run[:, None] * span + tl.arange(0, span)[None, :]
        packed = tl.load(line[:, None, None] + at[None, :, :], mask=(run < runs)[None, :, None], other=0)
        if bits == 8:
            acc += _line_part(x, packed, scale_at, zero_at, run, span, inputs, groups, 128, has_zeros)
        else:
            acc += _line_part(x, packed & 15, scale_at, zero_at, run * 2, span, inputs, groups, 8, has_zeros)
            acc += _line_part(x, packed >> 4, scale_at, zero_at, run * 2 + 1, span, inputs, groups, 8, has_zeros)
    total = tl.sum(tl.sum(acc, 2), 1)
    tl.store(y + output, total.to(y.dtype.element_ty), mask=output < outputs)


@triton.jit  # type: ignore[untyped-decorator]
def _tile_part(
    acc: tl.tensor,
    x: tl.tensor,
    row: tl.tensor,
    rows: tl.tensor,
    stride: tl.tensor,
    codes: tl.tensor,
    scale_at: tl.tensor,
    zero_at: tl.tensor,
    at: tl.tensor,
    spread: tl.constexpr,
    span: tl.constexpr,
    middle: tl.constexpr,
    has_zeros: tl.constexpr,
) -> tl.tensor:
    """``acc [outputs, rows]`` and the products with the span numbered ``at``; ``spread`` spans share a group."""
    k = at * span + tl.arange(0, span)
    values = tl.load(x + row[None, :] * stride + k[:, None], mask=(row < rows)[None, :], other=0.0)
    scales = tl.load(scale_at + at // spread).to(tl.float32)
    if has_zeros:
        weights = codes.to(tl.float32) - tl.load(zero_at + at // spread).to(tl.float32)[:, None]
    else:
        weights = codes.to(tl.float32) - middle
    return acc + tl.dot(weights.to(values.dtype), values, input_precision="ieee") * scales[:, None]


@triton.jit  # type: ignore[untyped-decorator]
def finish(
    acc: tl.tensor,
    y: tl.tensor,
    parts: tl.tensor,
    arrived: tl.tensor,
    output: tl.tensor,
    row: tl.tensor,
    outputs: tl.tensor,
    rows: tl.tensor,
    tile: tl.constexpr,
    most: tl.constexpr,
    splits: tl.constexpr,
) -> None:
    """Store ``acc [outputs, rows]``, this program's part of a sum over ``splits`` programs (axis 2), into ``y``."""
    at = y + row[None, :].to(tl.int64) * outputs + output[:, None]
    inside = (output < outputs)[:, None] & (row < rows)[None, :]
    if splits == 1:
        tl.store(at, acc.to(y.dtype.element_ty), mask=inside)
    else:
        number = tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)
        box = parts + number.to(tl.int64) * (splits * tile * most)
        place = tl.arange(0, tile)[:, None] * most + tl.arange(0, most)[None, :]
        tl.store(box + tl.program_id(2) * (tile * most) + place, acc)
        tl.debug_barrier()
        before = tl.atomic_add(arrived + number, 1, sem="acq_rel", scope="gpu")
        if before == splits - 1:
            total = tl.zeros([tile, most], tl.float32)
            for split in range(splits):
                total += tl.load(box + split * (tile * most) + place, cache_modifier=".cg")
            tl.store(at, total.to(y.dtype.element_ty), mask=inside)
            tl.store(arrived + number, 0)


@triton.jit  # type: ignore[untyped-decorator]
def _tile(
    x: tl.tensor,
    codes: tl.tensor,
    scales: tl.tensor,
    zeros: tl.tensor,
    y: tl.tensor,
    parts: tl.tensor,
    arrived: tl.tensor,
    rows: tl.tensor,
    outputs: tl.tensor,
    stride: tl.tensor,
    bits: tl.constexpr,
    inputs: tl.constexpr,
    groups: tl.constexpr,
    span: tl.constexpr,
    has_zeros: tl.constexpr,
    tile: tl.constexpr,
    most: tl.constexpr,
    splits: tl.constexpr,
    early: tl.constexpr = False,
) -> None:
    wait_first(early)
    # Programs that share weights come one after another: the second finds them in the cache.
    row = tl.program_id(0) * most + tl.arange(0, most)
    output = tl.program_id(1) * tile + tl.arange(0, tile)
    runs: tl.constexpr = inputs * bits // 8 // span
    spread: tl.constexpr = inputs // span // groups
    share: tl.constexpr = (runs + splits - 1) // splits
    begin = tl.program_id(2) * share
    kept = tl.minimum(output, outputs - 1).to(tl.int64)
    line = codes + kept * (runs * span)
    scale_at = scales + kept * groups
    zero_at = zeros + kept * groups
    acc = tl.zeros([tile, most], tl.float32)
    for run in range(begin, tl.minimum(begin + share, runs)):
        packed = tl.load(line[:, None] + run * span + tl.arange(0, span)[None, :])
        if bits == 8:
            acc = _tile_part(acc, x, row, rows, stride, packed, scale_at, zero_at, run, spread, span, 128, has_zeros)
        else:
            low, high = packed & 15, packed >> 4
            acc = _tile_part(acc, x, row, rows, stride, low, scale_at, zero_at, run * 2, spread, span, 8, has_zeros)
            acc = _tile_part(
                acc, x, row, rows, stride, high, scale_at, zero_at, run * 2 + 1, spread, span, 8, has_zeros
            )
    finish(acc, y, parts, arrived, output, row, outputs, rows, tile, most, splits)


@triton.jit  # type: ignore[untyped-decorator]
def _expand(
    codes: tl.tensor,
    scales: tl.tensor,
    zeros: tl.tensor,
    out: tl.tensor,
    bits: tl.constexpr,
    inputs: tl.constexpr,
    groups: tl.constexpr,
    span: tl.constexpr,
    spans: tl.constexpr,
    has_zeros: tl.constexpr,
    early: tl.constexpr = False,
) -> None:
    wait_first(early)
    output = tl.program_id(0).to(tl.int64)
    runs: tl.constexpr = inputs * bits // 8 // span
    spread: tl.constexpr = inputs // span // groups
    kind = out.dtype.element_ty
    column = tl.arange(0, span)[None, :]
    for start in range(0, runs, spans):
        run = start + tl.arange(0, spans)
        inside = (run < runs)[:, None]
        packed = tl.load(codes + output * (runs * span) + run[:, None] * span + column, mask=inside, other=0)
        for half in tl.static_range(8 // bits):
            at = run if bits == 8 else run * 2 + half
            number = packed if bits == 8 else (packed >> (4 * half)) & 15
            group = output * groups + at // spread
            scale = tl.load(scales + group, mask=run < runs, other=0.0).to(tl.float32)
            if has_zeros:
                weights = (
                    number.to(tl.float32) - tl.load(zeros + group, mask=run < runs, other=0).to(tl.float32)[:, None]
                )
            else:
                weights = number.to(tl.float32) - (128 if bits == 8 else 8)
            values = weights * scale[:, None]
            tl.store(out + output * inputs + at[:, None] * span + column, values.to(kind), mask=inside)


def line(
    x: torch.Tensor, matrix: Packed, *, outputs: int = 1, block: int | None = None, warps: int | None = None
) -> torch.Tensor:
    """``x [1, inputs] · matrixᵀ → [1, outputs]``; a program reads ``block`` bytes of each of ``outputs`` at a time."""
    y = x.new_empty((1, len(matrix.codes)))
    best_block, best_warps = (2048, 2) if matrix.bits == 8 else (4096, 4)
    _line[(triton.cdiv(len(matrix.codes), outputs),)](
        x,
        *_pointers(matrix),
        y,
        len(matrix.codes),
        **_meta(matrix),
        spans=_spans(matrix, block or best_block),
        tile=outputs,
        num_warps=warps or best_warps,
        **early(),
    )
    return y


def tile(x: torch.Tensor, matrix: Packed, tiling: Tiling | None = None) -> torch.Tensor:
    """``x [rows, inputs] · matrixᵀ → [rows, outputs]``, for so few rows that reading the matrix is most of the work."""
    rows, outputs = len(x), len(matrix.codes)
    nbytes = matrix.span, matrix.span * 8 // matrix.bits * x.element_size()
    how = tiling or tiling_of(rows, outputs, matrix.codes.shape[1] // matrix.span, nbytes, room_of(x.device))
    y = x.new_empty((rows, outputs))
    grid = (triton.cdiv(rows, how.rows), triton.cdiv(outputs, how.outputs), how.splits)
    _tile[grid](
        x,
        *_pointers(matrix),
        y,
        scratch(grid, how, x),
        arrivals(x.device),
        rows,
        outputs,
        x.stride(0),
        **_meta(matrix),
        tile=how.outputs,
        most=how.rows,
        splits=how.splits,
        num_warps=how.warps,
        num_stages=how.stages,
        **early(),
    )
    return y


def expand(matrix: Packed, out: torch.Tensor) -> torch.Tensor:
    """Write the matrix ``[outputs, inputs]`` in the dtype of ``out``."""
    _expand[(len(matrix.codes),)](
        *_pointers(matrix), out, **_meta(matrix), spans=_spans(matrix, 2048), num_warps=4, **early()
    )
    return out


def scratch(grid: tuple[int, int, int], how: Tiling, x: torch.Tensor) -> torch.Tensor:
    """Room for the parts of sums."""
    size = grid[0] * grid[1] * how.splits * how.outputs * how.rows if how.splits > 1 else 1
    return torch.empty(size, dtype=torch.float32, device=x.device)


def tiling_of(
    rows: int, outputs: int, steps: int, nbytes: tuple[int, int], room: Room = Room(), *, deep: bool = False
) -> Tiling:
    """``steps`` of the inputs can be shared out; in each an output and a row take ``nbytes``. ``deep``: a stage more.

    Few rows are held up by reading the matrix: small tiles, of which several share a multiprocessor. Many are by its
    instructions: large ones, and one program each, because every further part of a sum is written and read again.
    """
    most = min(max(triton.next_power_of_2(rows), 16), 128)
    is_wide = most >= 64
    tile_outputs = 128 if is_wide else 64
    tiles = triton.cdiv(rows, most) * triton.cdiv(outputs, tile_outputs)
    wanted = room.processors // tiles if is_wide else triton.cdiv(2 * room.processors, tiles)
    splits = max(min(wanted if tiles < MOST_TILES else 1, steps // 4, 16), 1)
    stages = 3 if is_wide and not deep else 4
    stages = min(stages, room.shared_bytes // (tile_outputs * nbytes[0] + most * nbytes[1]))
    return Tiling(tile_outputs, most, splits, 8 if is_wide else 4, max(stages, 2))


def _pointers(matrix: Packed) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return matrix.codes, matrix.scales, matrix.codes if matrix.zeros is None else matrix.zeros


def _meta(matrix: Packed) -> dict[str, int | bool]:
    return {
        "bits": matrix.bits,
        "inputs": matrix.inputs,
        "groups": matrix.scales.shape[1],
        "span": matrix.span,
        "has_zeros": matrix.zeros is not None,
    }


def _spans(matrix: Packed, block: int) -> int:
    runs: int = triton.next_power_of_2(matrix.codes.shape[1] // matrix.span)
    return max(min(block // matrix.span, runs), 1)
