"""Few rows times a matrix of fp8, both rounded to e4m3 (W8A8), and the rounding of the rows.

torch's scaled product is made for many rows; here the matrix is read once, as memory gives it. One row has a kernel of
its own, without matrix instructions.
"""

from typing import Final

import torch
import triton
import triton.language as tl

from bireme_worker.kernels.integers import Tiling, arrivals, finish, room_of, scratch, tiling_of
from bireme_worker.kernels.launch import early, wait_first

STEP: Final = 128
"""Inputs of one matrix instruction's tile."""
PART: Final = 4096
MANY: Final = 8192
MOST_BLOCK: Final = 16_384
"""Bytes of one output that a program reads at a time: few are read of two, and more than these by parts."""


@triton.jit  # type: ignore[untyped-decorator]
def _round_rows(
    x: tl.tensor,
    given: tl.tensor,
    rounded: tl.tensor,
    scales: tl.tensor,
    stride: tl.tensor,
    inputs: tl.constexpr,
    width: tl.constexpr,
    static: tl.constexpr,
    early: tl.constexpr = False,
) -> None:
    wait_first(early)
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, width)
    inside = at < inputs
    values = tl.load(x + row * stride + at, mask=inside, other=0.0).to(tl.float32)
    top = tl.max(tl.abs(values), 0)
    scale = tl.load(given) if static else tl.maximum(tl.div_rn(top, 448.0), 1e-12)
    scaled = tl.div_rn(values, scale + tl.zeros([width], tl.float32))
    scaled = tl.minimum(tl.maximum(scaled, -448.0), 448.0)
    tl.store(rounded + row * inputs + at, scaled.to(rounded.dtype.element_ty), mask=inside)
    tl.store(scales + row, scale)


@triton.jit  # type: ignore[untyped-decorator]
def _line(
    x: tl.tensor,
    x_scale: tl.tensor,
    values: tl.tensor,
    scales: tl.tensor,
    y: tl.tensor,
    outputs: tl.tensor,
    inputs: tl.constexpr,
    block: tl.constexpr,
    tile: tl.constexpr,
    early: tl.constexpr = False,
) -> None:
    wait_first(early)
    output = tl.program_id(0) * tile + tl.arange(0, tile)
    kept = tl.minimum(output, outputs - 1)
    begin = values + kept.to(tl.int64)[:, None] * inputs
    acc = tl.zeros([tile, block], tl.float32)
    for start in range(0, inputs, block):
        at = start + tl.arange(0, block)
        weights = tl.load(begin + at[None, :], mask=(at < inputs)[None, :], other=0.0)
        acc += weights.to(tl.float32) * tl.load(x + at, mask=at < inputs, other=0.0).to(tl.float32)[None, :]
    total = tl.sum(acc, 1) * tl.load(scales + kept) * tl.load(x_scale)
    tl.store(y + output, total.to(y.dtype.element_ty), mask=output < outputs)


@triton.jit  # type: ignore[untyped-decorator]
def _tile(
    x: tl.tensor,
    x_scale: tl.tensor,
    values: tl.tensor,
    scales: tl.tensor,
    y: tl.tensor,
    parts: tl.tensor,
    arrived: tl.tensor,
    rows: tl.tensor,
    outputs: tl.tensor,
    inputs: tl.constexpr,
    step: tl.constexpr,
    tile: tl.constexpr,
    most: tl.constexpr,
    splits: tl.constexpr,
    early: tl.constexpr = False,
) -> None:
    wait_first(early)
    row = tl.program_id(0) * most + tl.arange(0, most)
    output = tl.program_id(1) * tile + tl.arange(0, tile)
    steps: tl.constexpr = (inputs + step - 1) // step
    share: tl.constexpr = (steps + splits - 1) // splits
    begin = tl.program_id(2) * share
    kept = tl.minimum(output, outputs - 1)
    line = values + kept.to(tl.int64) * inputs
    acc = tl.zeros([tile, most], tl.float32)
    for number in range(begin, tl.minimum(begin + share, steps)):
        k = number * step + tl.arange(0, step)
        weights = tl.load(line[:, None] + k[None, :], mask=(k < inputs)[None, :], other=0.0)
        seen = (row < rows)[None, :] & (k < inputs)[:, None]
        inner = tl.load(x + row[None, :] * inputs + k[:, None], mask=seen, other=0.0)
        acc += tl.dot(weights, inner)
    acc *= tl.load(scales + kept)[:, None] * tl.load(x_scale + row, mask=row < rows, other=0.0)[None, :]
    finish(acc, y, parts, arrived, output, row, outputs, rows, tile, most, splits)


def round_rows(x: torch.Tensor, given: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """``x [rows, inputs]`` in fp8 and the scale of each row ``[rows, 1]``; ``given``: one scale for all."""
    rows, inputs = x.shape
    rounded = torch.empty((rows, inputs), dtype=torch.float8_e4m3fn, device=x.device)
    scales = torch.empty((rows, 1), dtype=torch.float32, device=x.device)
    width = triton.next_power_of_2(inputs)
    _round_rows[(rows,)](
        x,
        scales if given is None else given,
        rounded,
        scales,
        x.stride(0),
        inputs=inputs,
        width=width,
        static=given is not None,
        num_warps=min(max(width // 512, 1), 16),
        **early(),
    )
    return rounded, scales


def line(
    x: torch.Tensor,
    x_scale: torch.Tensor,
    values: torch.Tensor,
    scales: torch.Tensor,
    dtype: torch.dtype,
    *,
    outputs: int = 0,
    block: int = 0,
    warps: int = 4,
) -> torch.Tensor:
    """``x [1, inputs] · valuesᵀ`` with both scales; a program reads ``block`` bytes of each of ``outputs`` a time.

    0: as is fastest on an H200, by ``benchmarks/gpu/tilings.py``.
    """
    count, inputs = values.shape
    y = torch.empty((1, count), dtype=dtype, device=x.device)
    best = _line_tiling(inputs)
    outputs, block = outputs or best[0], min(block or best[1], triton.next_power_of_2(inputs))
    grid = (triton.cdiv(count, outputs),)
    _line[grid](
        x, x_scale, values, scales, y, count, inputs=inputs, block=block, tile=outputs, num_warps=warps, **early()
    )
    return y


def _line_tiling(inputs: int) -> tuple[int, int]:
    """How many outputs, and how many bytes of each: all at once, or where that would be a quarter idle, by parts."""
    whole = triton.next_power_of_2(inputs)
    if whole > MOST_BLOCK or (whole > inputs and inputs % PART == 0):
        return 1, PART
    return 1 if whole == inputs >= MANY else 2, whole


def tile(
    x: torch.Tensor,
    x_scale: torch.Tensor,
    values: torch.Tensor,
    scales: torch.Tensor,
    dtype: torch.dtype,
    tiling: Tiling | None = None,
) -> torch.Tensor:
    """The same for a few rows."""
    rows, (outputs, inputs) = len(x), values.shape
    steps = triton.cdiv(inputs, STEP)
    how = tiling or tiling_of(rows, outputs, steps, (STEP, STEP), room_of(x.device), deep=True)
    y = torch.empty((rows, outputs), dtype=dtype, device=x.device)
    grid = (triton.cdiv(rows, how.rows), triton.cdiv(outputs, how.outputs), how.splits)
    _tile[grid](
        x,
        x_scale,
        values,
        scales,
        y,
        scratch(grid, how, x),
        arrivals(x.device),
        rows,
        outputs,
        inputs=inputs,
        step=STEP,
        tile=how.outputs,
        most=how.rows,
        splits=how.splits,
        num_warps=how.warps,
        num_stages=how.stages,
        **early(),
    )
    return y
