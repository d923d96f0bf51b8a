"""The plain draw in one pass over the logits: temperature, Gumbel noise, argmax, and whether all were finite.

Rows at temperature 0 take the argmax alone; which rows those are is known to the device, so one graph serves any mix.
The noise is that of ``bireme.philox``: word ``id % 4`` of counter (output, id // 4, choice, 0). Ties: the lower id.
"""

from typing import Final

import torch
import triton
import triton.language as tl

from bireme_worker.kernels.launch import early, wait_first
from bireme_worker.sampling.state import SamplingState

CHUNK: Final = 4096
"""Ids that one program looks at."""


@triton.jit  # type: ignore[untyped-decorator]
def _gumbel(word: tl.tensor) -> tl.tensor:
    v = tl.minimum(word.to(tl.float32) * 2.3283064365386963e-10 + 1.1641532182693481e-10, 0.999999940395355225)
    rest = 1 - v
    taken = 1 - rest
    # Kahan's log1p, as the sampler of the CPU has it.
    exponential = tl.where(taken == 0, v, -tl.log(rest) * v / tl.where(taken == 0, 1.0, taken))
    return -tl.log(exponential)


@triton.jit  # type: ignore[untyped-decorator]
def _part(
    logits: tl.tensor,
    slots: tl.tensor,
    outputs: tl.tensor,
    temperature: tl.tensor,
    seed_low: tl.tensor,
    seed_high: tl.tensor,
    choice: tl.tensor,
    scores: tl.tensor,
    ids: tl.tensor,
    faults: tl.tensor,
    count: tl.tensor,
    start: tl.tensor,
    stride: tl.tensor,
    quarter: tl.constexpr,
    early: tl.constexpr = False,
) -> None:
    wait_first(early)
    row = tl.program_id(0)
    chunk = tl.program_id(1)
    slot = tl.load(slots + row)
    heat = tl.load(temperature + slot)
    four = chunk * quarter + tl.arange(0, quarter)
    at = logits + row.to(tl.int64) * stride + four * 4
    low = -float("inf")
    x0 = tl.load(at, mask=four * 4 < count, other=low).to(tl.float32)
    x1 = tl.load(at + 1, mask=four * 4 + 1 < count, other=low).to(tl.float32)
    x2 = tl.load(at + 2, mask=four * 4 + 2 < count, other=low).to(tl.float32)
    x3 = tl.load(at + 3, mask=four * 4 + 3 < count, other=low).to(tl.float32)
    # Padding does not count; no number is less than infinity, and no NaN either.
    high = float("inf")
    fault = tl.where((four * 4 < count) & ~(tl.abs(x0) < high), 1, 0)
    fault |= tl.where((four * 4 + 1 < count) & ~(tl.abs(x1) < high), 1, 0)
    fault |= tl.where((four * 4 + 2 < count) & ~(tl.abs(x2) < high), 1, 0)
    fault |= tl.where((four * 4 + 3 < count) & ~(tl.abs(x3) < high), 1, 0)
    if heat > 0:
        c0 = tl.load(outputs + row).to(tl.uint32) + tl.zeros([quarter], tl.uint32)
        c1 = (four + start // 4).to(tl.uint32)
        c2 = tl.load(choice + slot).to(tl.uint32) + tl.zeros([quarter], tl.uint32)
        k0 = tl.load(seed_low + slot).to(tl.uint32)
        k1 = tl.load(seed_high + slot).to(tl.uint32)
        c0, c1, c2, c3 = tl.philox_impl(c0, c1, c2, tl.zeros([quarter], tl.uint32), k0, k1)
        x0 = x0 / heat + _gumbel(c0)
        x1 = x1 / heat + _gumbel(c1)
        x2 = x2 / heat + _gumbel(c2)
        x3 = x3 / heat + _gumbel(c3)
    x0 = tl.where(tl.abs(x0) < high, x0, low)
    x1 = tl.where(tl.abs(x1) < high, x1, low)
    x2 = tl.where(tl.abs(x2) < high, x2, low)
    x3 = tl.where(tl.abs(x3) < high, x3, low)
    best = tl.max(tl.maximum(tl.maximum(x0, x1), tl.maximum(x2, x3)), 0)
    far = 1 << 30
    place = tl.where(x3 == best, four * 4 + 3, far)
    place = tl.where(x2 == best, four * 4 + 2, place)
    place = tl.where(x1 == best, four * 4 + 1, place)
    place = tl.where(x0 == best, four * 4, place)
    number = row * tl.num_programs(1) + chunk
    tl.store(scores + number, best)
    tl.store(ids + number, tl.min(place, 0))
    tl.store(faults + number, tl.max(fault, 0))


@triton.jit  # type: ignore[untyped-decorator]
def _choose(
    scores: tl.tensor,
    ids: tl.tensor,
    faults: tl.tensor,
    drawn: tl.tensor,
    bad: tl.tensor,
    bests: tl.tensor,
    count: tl.tensor,
    start: tl.tensor,
    chunks: tl.tensor,
    width: tl.constexpr,
    early: tl.constexpr = False,
) -> None:
    wait_first(early)
    row = tl.program_id(0)
    part = tl.arange(0, width)
    inside = part < chunks
    values = tl.load(scores + row * chunks + part, mask=inside, other=-float("inf"))
    places = tl.load(ids + row * chunks + part, mask=inside, other=1 << 30)
    faulty = tl.load(faults + row * chunks + part, mask=inside, other=0)
    best = tl.max(values, 0)
    place = tl.min(tl.where(values == best, places, 1 << 30), 0)
    # Also a broken row must name an id that exists: the next step may look it up before anybody reads this one.
    tl.store(drawn + row, (tl.minimum(place, count - 1) + start).to(tl.int64))
    tl.store(bad + row, tl.max(faulty, 0) > 0)
    tl.store(bests + row, best)


def draw(
    logits: torch.Tensor, slots: torch.Tensor, outputs: torch.Tensor, state: SamplingState
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Best scores ``[rows]`` of ``logits [rows, shard]``, their ids, and whether a row's logits were not finite."""
    rows, count = len(logits), state.shard.count
    chunks = triton.cdiv(count, CHUNK)
    scores = torch.empty((rows, chunks), dtype=torch.float32, device=logits.device)
    ids = torch.empty((rows, chunks), dtype=torch.int32, device=logits.device)
    faults = torch.empty_like(ids)
    constants = (state.temperature, state.seed_low, state.seed_high, state.choice)
    start = state.shard.start
    _part[(rows, chunks)](
        logits,
        slots,
        outputs,
        *constants,
        scores,
        ids,
        faults,
        count,
        start,
        logits.stride(0),
        quarter=CHUNK // 4,
        **early(),
    )
    drawn = torch.empty(rows, dtype=torch.int64, device=logits.device)
    bad = torch.empty(rows, dtype=torch.bool, device=logits.device)
    best = torch.empty(rows, dtype=torch.float32, device=logits.device)
    width = triton.next_power_of_2(chunks)
    _choose[(rows,)](scores, ids, faults, drawn, bad, best, count, start, chunks, width=width, **early())
    return best, drawn, bad
