"""The element-wise chains of a decoder layer, one kernel each: residual and norm, rotation and cache write, SiLU · up.

They round where the plain layers round, so that both give the same numbers in the model's dtype.
"""

from typing import Final

import torch
import triton
import triton.language as tl

from bireme_worker.kernels.launch import early, wait_first
from bireme_worker.models.kv_cache import BLOCK_SIZE, FORMATS

LARGEST: Final = dict(FORMATS.values())
"""Largest value of each dtype of 8 bits."""


@triton.jit  # type: ignore[untyped-decorator]
def _add_norm(
    x: tl.tensor,
    delta: tl.tensor,
    weight: tl.tensor,
    out: tl.tensor,
    eps: tl.tensor,
    size: tl.constexpr,
    width: tl.constexpr,
    add: tl.constexpr,
    from_one: tl.constexpr,
    early: tl.constexpr = False,
) -> None:
    wait_first(early)
    row = tl.program_id(0).to(tl.int64) * size
    at = tl.arange(0, width)
    inside = at < size
    kind = out.dtype.element_ty
    values = tl.load(x + row + at, mask=inside, other=0.0)
    if add:
        more = tl.load(delta + row + at, mask=inside, other=0.0)
        values = (values.to(tl.float32) + more.to(tl.float32)).to(kind)
        tl.store(x + row + at, values, mask=inside)
    wide = values.to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, 0) / size + eps)
    gain = tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    normed = wide * scale * (gain + 1) if from_one else (wide * scale).to(kind).to(tl.float32) * gain
    tl.store(out + row + at, normed.to(kind), mask=inside)


def add_norm(
    x: torch.Tensor, delta: torch.Tensor | None, weight: torch.Tensor, eps: float, *, from_one: bool = False
) -> torch.Tensor:
    """Add ``delta`` to ``x [tokens, size]`` in place, and return the root mean square norm of the sum.

    ``from_one``: the gain is one more than ``weight``.
    """
    tokens, size = x.shape
    out = torch.empty_like(x)
    width = triton.next_power_of_2(size)
    _add_norm[(tokens,)](
        x,
        x if delta is None else delta,
        weight,
        out,
        eps,
        size=size,
        width=width,
        add=delta is not None,
        from_one=from_one,
        num_warps=min(max(width // 512, 1), 16),
        **early(),
    )
    return out


@triton.jit  # type: ignore[untyped-decorator]
def _silu_mul(
    gate_up: tl.tensor, out: tl.tensor, width: tl.tensor, block: tl.constexpr, early: tl.constexpr = False
) -> None:
    wait_first(early)
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * block + tl.arange(0, block)
    inside = at < width
    kind = out.dtype.element_ty
    gate = tl.load(gate_up + row * 2 * width + at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * width + width + at, mask=inside, other=0.0).to(tl.float32)
    gated = (gate / (1 + tl.exp(-gate))).to(kind).to(tl.float32)
    tl.store(out + row * width + at, (gated * up).to(kind), mask=inside)


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """``silu(gate) · up [tokens, width]`` for ``gate_up [tokens, 2 × width]``."""
    tokens, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = gate_up.new_empty((tokens, width))
    _silu_mul[(tokens, triton.cdiv(width, 1024))](gate_up, out, width, block=1024, num_warps=4, **early())
    return out


@triton.jit  # type: ignore[untyped-decorator]
def _rotate_store(
    qkv: tl.tensor,
    cos: tl.tensor,
    sin: tl.tensor,
    slot_mapping: tl.tensor,
    cache: tl.tensor,
    scales: tl.tensor,
    queries: tl.tensor,
    query_heads: tl.constexpr,
    kv_heads: tl.constexpr,
    half: tl.constexpr,
    half_pad: tl.constexpr,
    page: tl.constexpr,
    block: tl.constexpr,
    largest: tl.constexpr,
    early: tl.constexpr = False,
) -> None:
    wait_first(early)
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * block + tl.arange(0, block)
    d = tl.arange(0, half_pad)
    all_heads = query_heads + 2 * kv_heads
    inside = (head < all_heads)[:, None] & (d < half)[None, :]
    kind = queries.dtype.element_ty
    at = (token * all_heads + head)[:, None] * (2 * half) + d[None, :]
    low = tl.load(qkv + at, mask=inside, other=0.0).to(tl.float32)
    high = tl.load(qkv + at + half, mask=inside, other=0.0).to(tl.float32)
    turned = (head < query_heads + kv_heads)[:, None]
    c = tl.where(turned, tl.load(cos + token * half + d, mask=d < half, other=0.0)[None, :], 1.0)
    s = tl.where(turned, tl.load(sin + token * half + d, mask=d < half, other=0.0)[None, :], 0.0)
    new_low = (low * c - high * s).to(kind)
    new_high = (high * c + low * s).to(kind)
    is_query = inside & (head < query_heads)[:, None]
    q_at = (token * query_heads + head)[:, None] * (2 * half) + d[None, :]
    tl.store(queries + q_at, new_low, mask=is_query)
    tl.store(queries + q_at + half, new_high, mask=is_query)
    # A block holds its keys [page, heads, size], then its values.
    place = tl.load(slot_mapping + token)
    is_value = (head >= query_heads + kv_heads).to(tl.int64)
    line = (place // page) * 2 * page + is_value * page + place % page
    number = line * kv_heads + head - query_heads - is_value * kv_heads
    kv_at = number[:, None] * (2 * half) + d[None, :]
    is_kv = inside & (head >= query_heads)[:, None]
    if largest > 0:  # 8 bits, with a scale for each head of each token
        wide_low, wide_high = new_low.to(tl.float32), new_high.to(tl.float32)
        top = tl.max(tl.maximum(tl.abs(wide_low), tl.abs(wide_high)), 1)
        scale = tl.div_rn(top, tl.full([block], largest, tl.float32))
        tl.store(scales + number, scale, mask=(head >= query_heads) & (head < all_heads))
        new_low, new_high = _packed(wide_low, scale, largest), _packed(wide_high, scale, largest)
    tl.store(cache + kv_at, new_low.to(cache.dtype.element_ty), mask=is_kv)
    tl.store(cache + kv_at + half, new_high.to(cache.dtype.element_ty), mask=is_kv)


@triton.jit  # type: ignore[untyped-decorator]
def _packed(values: tl.tensor, scale: tl.tensor, largest: tl.constexpr) -> tl.tensor:
    scaled = tl.div_rn(values, tl.maximum(scale, 1e-30)[:, None] + tl.zeros_like(values))
    if largest == 127:  # adding and taking away 1.5 · 2^23 rounds to the nearest integer, ties to even
        scaled = (scaled + 12582912.0) - 12582912.0
    return tl.minimum(tl.maximum(scaled, -largest), largest)


def rotate_store(
    qkv: torch.Tensor,
    rotation: tuple[torch.Tensor, torch.Tensor],
    slot_mapping: torch.Tensor,
    cache: torch.Tensor,
    scales: torch.Tensor | None = None,
) -> torch.Tensor:
    """Rotate queries and keys of ``qkv [tokens, heads, size]``, write keys and values; return the queries.

    ``rotation``: cosines and sines ``[tokens, size / 2]``, float32. ``cache [blocks, 2, page, kv heads, size]``; one of
    8 bits has ``scales [blocks, 2, page, kv heads]``.
    """
    tokens, heads, size = qkv.shape
    kv_heads = cache.shape[3]
    query_heads = heads - 2 * kv_heads
    queries = qkv.new_empty((tokens, query_heads, size))
    _rotate_store[(tokens, triton.cdiv(heads, 8))](
        qkv,
        *rotation,
        slot_mapping,
        cache,
        queries if scales is None else scales,
        queries,
        query_heads=query_heads,
        kv_heads=kv_heads,
        half=size // 2,
        half_pad=triton.next_power_of_2(size // 2),
        page=BLOCK_SIZE,
        block=8,
        largest=0.0 if scales is None else LARGEST[cache.dtype],
        num_warps=2,
        **early(),
    )
    return queries
