"""Attention over the paged cache.

A backend turns the flat batch into a step, once for all layers. `GatherBackend` is the CPU's and the reference: it
gathers pages and calls torch's scaled dot product attention, for one-token rows of similar length together: as many as
a core's cache holds, or what was gathered would be read from memory again. Query heads that share a key-value head are
treated as so many queries of it. `PagedBackend` (paged.py) is the GPU's.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import torch
from torch.nn import functional

from bireme_worker.models.batch import Batch
from bireme_worker.models.kv_cache import BLOCK_SIZE, LayerCache, pages_of, places_of
from bireme_worker.models.layers.linear import ColumnLinear, Projection, RowLinear
from bireme_worker.models.layers.rotary import angles, rotate
from bireme_worker.models.shard import HeadShard
from bireme_worker.models.weight import Weight
from bireme_worker.parallel.communicator import Communicator

GROUP_BYTES: Final = 1 << 20
"""Keys that are gathered at a time, and as many bytes of values."""


@dataclass(frozen=True, slots=True)
class Rule:
    """How scores are made, beyond ``q · k / sqrt(head_dim)`` over all that came before; 0 is what is usual.

    Attributes:
        window: a token sees as many last tokens, itself included.
        cap: scores are ``cap · tanh(score / cap)``.
        scale: instead of ``1 / sqrt(head_dim)``.
        stretch: sines and cosines are multiplied by it.
    """

    window: int = 0
    cap: float = 0.0
    scale: float = 0.0
    stretch: float = 1.0


PLAIN: Final = Rule()


class AttentionStep(Protocol):
    """What all layers of one step share: rotation, pages, masks."""

    def store(self, qkv: torch.Tensor, cache: LayerCache) -> torch.Tensor:
        """Rotate ``qkv [tokens, heads, head_dim]``, maybe in place; write its keys and values; return the queries."""
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
class _Group:
    """One-token rows ``begin`` to ``end``."""

    begin: int
    end: int
    pages: torch.Tensor
    mask: torch.Tensor


@dataclass(frozen=True, slots=True)
class _Span:
    begin: int
    end: int
    length: int
    pages: torch.Tensor
    mask: torch.Tensor


class GatherBackend:
    """Pages gathered into one tensor, then SDPA."""

    def __init__(self, heads: HeadShard, dtype: torch.dtype, device: torch.device, rule: Rule = PLAIN) -> None:
        self.heads = heads
        self._dtype = dtype
        self._rule = rule
        # Shards whose query heads share key-value heads unevenly get a key-value head per query head.
        self._expand = None if heads.is_even else torch.tensor(heads.kv_of_query, device=device)

    def prepare(self, batch: Batch, frequency: torch.Tensor) -> "GatherStep":
        """Angles, page numbers and masks."""
        block_bytes = BLOCK_SIZE * self.heads.kv_count * 2 * max(len(frequency), 1) * self._dtype.itemsize
        cuts = group_rows(batch.lengths, max(GROUP_BYTES // block_bytes, 1))
        return GatherStep(
            heads=self.heads,
            expand=self._expand,
            rotation=angles(batch.positions, frequency, self._dtype, self._rule.stretch),
            places=places_of(batch.slot_mapping),
            groups=tuple(_group(batch, *cut, self._rule.window, self._dtype) for cut in cuts),
            spans=tuple(
                _span(batch, batch.single + n, span, self._rule.window, self._dtype)
                for n, span in enumerate(batch.spans)
            ),
            rule=self._rule,
        )


def group_rows(lengths: Sequence[int], blocks: int) -> list[tuple[int, int]]:
    """Cut rows of rising ``lengths`` into (begin, end) such that each part, padded to its last row, has ``blocks``."""
    cuts, begin = [], 0
    for row, length in enumerate(lengths):
        if row > begin and (row + 1 - begin) * -(-length // BLOCK_SIZE) > blocks:
            cuts.append((begin, row))
            begin = row
    return [*cuts, (begin, len(lengths))] if lengths else []


def _group(batch: Batch, begin: int, end: int, window: int, dtype: torch.dtype) -> _Group:
    blocks = -(-batch.lengths[end - 1] // BLOCK_SIZE)
    pages = pages_of(batch.block_table[:, :blocks].index_select(0, batch.slots[begin:end]))
    places = torch.arange(blocks * BLOCK_SIZE, device=pages.device)
    mask = _added(_seen(places, batch.seq_lens[begin:end] - 1, window), dtype)[:, None, None, :]
    return _Group(begin, end, pages, mask)


def _seen(places: torch.Tensor, positions: torch.Tensor, window: int) -> torch.Tensor:
    """Which of ``places [keys]`` each of ``positions [queries]`` sees."""
    last = positions.unsqueeze(1)
    return (places <= last) & (places > last - window) if window else places <= last


def _added(seen: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """What is added to scores so that only ``seen`` places count: a mask of truth values is made into it every time."""
    return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, -torch.inf)


def _span(batch: Batch, row: int, span: tuple[int, int, int], window: int, dtype: torch.dtype) -> _Span:
    begin, end, length = span
    blocks = -(-length // BLOCK_SIZE)
    pages = pages_of(batch.block_table[:, :blocks].index_select(0, batch.slots[row : row + 1]))
    places = torch.arange(length, device=pages.device)
    mask = _added(_seen(places, batch.positions[begin:end], window), dtype)
    return _Span(begin, end, length, pages, mask)


@dataclass(frozen=True, slots=True)
class GatherStep:
    """Angles, page numbers and masks of one step."""

    heads: HeadShard
    expand: torch.Tensor | None
    rotation: tuple[torch.Tensor, torch.Tensor]
    places: torch.Tensor
    groups: tuple[_Group, ...]
    spans: tuple[_Span, ...]
    rule: Rule = PLAIN

    def store(self, qkv: torch.Tensor, cache: LayerCache) -> torch.Tensor:
        """As the protocol says."""
        query = self.heads.query_count
        kept = query + self.heads.kv_count
        rotate(qkv[:, :kept], *self.rotation)
        cache.write(self.places, qkv[:, query:].view(len(qkv), 2, self.heads.kv_count, -1))
        return qkv[:, :query]

    def attend(self, queries: torch.Tensor, cache: LayerCache) -> torch.Tensor:
        """As the protocol says."""
        parts = [self._attend_group(queries[group.begin : group.end], cache, group) for group in self.groups]
        parts += [self._attend_span(queries[span.begin : span.end], cache, span) for span in self.spans]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _attend_group(self, queries: torch.Tensor, cache: LayerCache, group: _Group) -> torch.Tensor:
        keys, values = self._read(cache, group.pages)
        rows, heads, size = queries.shape
        grouped = queries.reshape(rows, keys.shape[1], heads // keys.shape[1], size)
        return self._product(grouped, keys, values, group.mask).reshape(rows, heads * size)

    def _attend_span(self, queries: torch.Tensor, cache: LayerCache, span: _Span) -> torch.Tensor:
        keys, values = self._read(cache, span.pages)
        keys, values = keys[:, :, : span.length], values[:, :, : span.length]
        grouped = queries.transpose(0, 1).unsqueeze(0)
        out = self._product(grouped, keys, values, span.mask)
        return out[0].transpose(0, 1).reshape(span.end - span.begin, -1)

    def _product(
        self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor
    ) -> torch.Tensor:
        """Attention of ``queries [rows, heads, queries, size]`` to ``keys [rows, kv heads, keys, size]``."""
        scale = self.rule.scale or queries.shape[-1] ** -0.5
        group = queries.shape[1] // keys.shape[1]
        if not self.rule.cap:
            return functional.scaled_dot_product_attention(
                queries, keys, values, attn_mask=mask, scale=scale, enable_gqa=group != 1
            )
        keys, values = keys.repeat_interleave(group, 1), values.repeat_interleave(group, 1)
        scores = (queries @ keys.transpose(-1, -2)).float().mul_(scale / self.rule.cap).tanh_().mul_(self.rule.cap)
        return scores.add_(mask).softmax(-1).to(values.dtype) @ values

    def _read(self, cache: LayerCache, pages: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values ``[rows, heads, length, head_dim]``."""
        both = cache.read(pages).transpose(2, 3)
        keys, values = (both if self.expand is None else both.index_select(2, self.expand)).unbind()
        return keys, values


@dataclass(frozen=True, slots=True)
class ForwardPass:
    """What all layers of one step share: the attention's step and the other ranks."""

    step: AttentionStep
    communicator: Communicator


@dataclass(frozen=True, slots=True)
class AttentionSize:
    """Sizes of the whole attention, before any sharding. ``bias``: on queries, keys and values, and on the output
    unless ``output_bias`` is off.
    """

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    bias: bool
    output_bias: bool = True


class Attention:
    """Packed query-key-value projection, rotation, cache, output projection."""

    def __init__(
        self, name: str, size: AttentionSize, shard: HeadShard, dtype: torch.dtype, *, packed: bool = False
    ) -> None:
        """``packed``: the checkpoint has queries, keys and values in one matrix."""
        dim = size.head_dim
        output = Projection(f"{name}.o_proj", size.heads * dim, slice(shard.query.start * dim, shard.query.stop * dim))
        self.qkv = ColumnLinear(_projections(name, size, shard, packed=packed), size.hidden, dtype, bias=size.bias)
        self.out = RowLinear(output, size.hidden, dtype, bias=size.bias and size.output_bias)
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


def _projections(name: str, size: AttentionSize, shard: HeadShard, *, packed: bool) -> list[Projection]:
    """This rank's query, key and value heads, in this order."""
    dim, heads = size.head_dim, (size.heads, size.kv_heads, size.kv_heads)
    parts = zip(("q_proj", "k_proj", "v_proj"), heads, (shard.query, shard.kv, shard.kv), strict=True)
    if not packed:
        return [
            Projection(f"{name}.{one}", count * dim, slice(part.start * dim, part.stop * dim))
            for one, count, part in parts
        ]
    firsts = (0, size.heads, size.heads + size.kv_heads)
    return [
        Projection(f"{name}.qkv_proj", sum(heads) * dim, slice((first + part.start) * dim, (first + part.stop) * dim))
        for first, (_, _, part) in zip(firsts, parts, strict=True)
    ]
