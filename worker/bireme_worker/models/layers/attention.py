"""Attention over the paged cache.

A backend turns the flat batch into a step, once for all layers. `GatherBackend` is the CPU's and the reference: it
gathers pages and calls torch's scaled dot product attention, all one-token rows in one call. Query heads that share a
key-value head are treated as so many queries of it. `PagedBackend` (paged.py) is the GPU's.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch.nn import functional

from bireme_worker.models.batch import Batch
from bireme_worker.models.kv_cache import BLOCK_SIZE, LayerCache, key_rows_of
from bireme_worker.models.layers.linear import ColumnLinear, Projection, RowLinear
from bireme_worker.models.layers.rotary import angles, rotate
from bireme_worker.models.shard import HeadShard
from bireme_worker.models.weight import Weight
from bireme_worker.parallel.communicator import Communicator


class AttentionStep(Protocol):
    """What all layers of one step share: rotation, pages, masks."""

    def store(self, qkv: torch.Tensor, cache: LayerCache) -> torch.Tensor:
        """Rotate ``qkv [tokens, heads, head_dim]``, write its keys and values; return the queries."""
        ...

    def attend(self, queries: torch.Tensor, cache: LayerCache) -> torch.Tensor:
        """Return ``[tokens, query heads × head_dim]`` for ``queries [tokens, query heads, head_dim]``."""
        ...


class AttentionBackend(Protocol):
    """How one device attends."""

    heads: HeadShard

    def prepare(self, batch: Batch, frequency: torch.Tensor) -> AttentionStep:
        """``frequency``: radians per position of each pair of channels, float32."""
        ...


@dataclass(frozen=True, slots=True)
class _Span:
    begin: int
    end: int
    length: int
    pages: torch.Tensor
    mask: torch.Tensor


class GatherBackend:
    """Pages gathered into one tensor, then SDPA."""

    def __init__(self, heads: HeadShard, dtype: torch.dtype, device: torch.device) -> None:
        self.heads = heads
        self._dtype = dtype
        # Shards whose query heads share key-value heads unevenly get a key-value head per query head.
        self._expand = None if heads.is_even else torch.tensor(heads.kv_of_query, device=device)

    def prepare(self, batch: Batch, frequency: torch.Tensor) -> "GatherStep":
        """Angles, page numbers and masks."""
        pages = mask = None
        if batch.single:
            blocks = -(-batch.longest // BLOCK_SIZE)
            pages = batch.block_table[:, :blocks].index_select(0, batch.slots[: batch.single]) * 2
            places = torch.arange(blocks * BLOCK_SIZE, device=pages.device)
            mask = (places < batch.seq_lens[: batch.single].unsqueeze(1))[:, None, None, :]
        return GatherStep(
            heads=self.heads,
            expand=self._expand,
            rotation=angles(batch.positions, frequency, self._dtype),
            key_rows=key_rows_of(batch.slot_mapping),
            single=batch.single,
            pages=pages,
            mask=mask,
            spans=tuple(_span(batch, batch.single + number, *span) for number, span in enumerate(batch.spans)),
        )


def _span(batch: Batch, row: int, begin: int, end: int, length: int) -> _Span:
    blocks = -(-length // BLOCK_SIZE)
    pages = batch.block_table[:, :blocks].index_select(0, batch.slots[row : row + 1]) * 2
    places = torch.arange(length, device=pages.device)
    mask = places <= batch.positions[begin:end].unsqueeze(1)
    return _Span(begin, end, length, pages, mask)


@dataclass(frozen=True, slots=True)
class GatherStep:
    """Angles, page numbers and masks of one step."""

    heads: HeadShard
    expand: torch.Tensor | None
    rotation: tuple[torch.Tensor, torch.Tensor]
    key_rows: torch.Tensor
    single: int
    pages: torch.Tensor | None
    mask: torch.Tensor | None
    spans: tuple[_Span, ...]

    def store(self, qkv: torch.Tensor, cache: LayerCache) -> torch.Tensor:
        """As the protocol says."""
        query = self.heads.query_count
        kept = query + self.heads.kv_count
        rotated = rotate(qkv[:, :kept], *self.rotation)
        cache.write(self.key_rows, rotated[:, query:], qkv[:, kept:])
        return rotated[:, :query]

    def attend(self, queries: torch.Tensor, cache: LayerCache) -> torch.Tensor:
        """As the protocol says."""
        parts = []
        if self.pages is not None:
            parts.append(self._attend_single(queries[: self.single], cache, self.pages))
        parts += [self._attend_span(queries[span.begin : span.end], cache, span) for span in self.spans]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _attend_single(self, queries: torch.Tensor, cache: LayerCache, pages: torch.Tensor) -> torch.Tensor:
        keys, values = self._read(cache, pages)
        rows, heads, size = queries.shape
        grouped = queries.reshape(rows, keys.shape[1], heads // keys.shape[1], size)
        return functional.scaled_dot_product_attention(grouped, keys, values, attn_mask=self.mask).reshape(
            rows, heads * size
        )

    def _attend_span(self, queries: torch.Tensor, cache: LayerCache, span: _Span) -> torch.Tensor:
        keys, values = self._read(cache, span.pages)
        keys, values = keys[:, :, : span.length], values[:, :, : span.length]
        grouped = queries.transpose(0, 1).unsqueeze(0)
        out = functional.scaled_dot_product_attention(
            grouped, keys, values, attn_mask=span.mask, enable_gqa=grouped.shape[1] != keys.shape[1]
        )
        return out[0].transpose(0, 1).reshape(span.end - span.begin, -1)

    def _read(self, cache: LayerCache, pages: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values ``[rows, heads, length, head_dim]``."""
        keys, values = cache.read(pages)
        if self.expand is not None:
            keys, values = keys.index_select(2, self.expand), values.index_select(2, self.expand)
        return keys.transpose(1, 2), values.transpose(1, 2)


@dataclass(frozen=True, slots=True)
class ForwardPass:
    """What all layers of one step share: the attention's step and the other ranks."""

    step: AttentionStep
    communicator: Communicator


@dataclass(frozen=True, slots=True)
class AttentionSize:
    """Sizes of the whole attention, before any sharding."""

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    bias: bool


class Attention:
    """Packed query-key-value projection, rotation, cache, output projection."""

    def __init__(self, name: str, size: AttentionSize, shard: HeadShard, dtype: torch.dtype) -> None:
        dim = size.head_dim
        rows = slice(shard.query.start * dim, shard.query.stop * dim)
        kv_rows = slice(shard.kv.start * dim, shard.kv.stop * dim)
        packed = (
            Projection(f"{name}.q_proj", size.heads * dim, rows),
            Projection(f"{name}.k_proj", size.kv_heads * dim, kv_rows),
            Projection(f"{name}.v_proj", size.kv_heads * dim, kv_rows),
        )
        output = Projection(f"{name}.o_proj", size.heads * dim, rows)
        self.qkv = ColumnLinear(packed, size.hidden, dtype, bias=size.bias)
        self.out = RowLinear(output, size.hidden, dtype, bias=size.bias)
        self._heads = shard.query_count + 2 * shard.kv_count
        self._head_dim = dim

    @property
    def weights(self) -> list[Weight]:
        """Parameters in load order."""
        return [*self.qkv.weights, *self.out.weights]

    def __call__(self, x: torch.Tensor, cache: LayerCache, forward: ForwardPass) -> torch.Tensor:
        qkv = self.qkv(x).view(x.shape[0], self._heads, self._head_dim)
        queries = forward.step.store(qkv, cache)
        return self.out(forward.step.attend(queries, cache), forward.communicator)
