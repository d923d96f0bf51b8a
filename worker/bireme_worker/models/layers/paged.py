"""Attention on the GPU: our kernels read the paged cache where it lies.

One-token rows go through the decode kernel together, whose grid depends on their number alone; longer rows are cut into
tiles, listed on the host from the plan.
"""

from dataclasses import dataclass

import numpy as np
import torch

from bireme_worker.kernels import attention
from bireme_worker.kernels.layer import rotate_store
from bireme_worker.models.batch import Batch
from bireme_worker.models.kv_cache import LayerCache
from bireme_worker.models.layers.attention import PLAIN, Rule
from bireme_worker.models.shard import HeadShard
from bireme_worker.models.transfer import upload


class PagedBackend:
    """The kernels' backend; every key-value head serves as many query heads (``HeadShard.is_even``)."""

    def __init__(self, heads: HeadShard, dtype: torch.dtype, rule: Rule = PLAIN) -> None:
        assert heads.is_even
        self.heads = heads
        self._rule = rule
        self._tile = attention.tile_tokens(heads.query_count, heads.kv_count, dtype)

    def prepare(self, batch: Batch, frequency: torch.Tensor) -> "PagedStep":
        """Angles, and the tiles of longer rows."""
        turns = batch.positions.to(torch.float32).unsqueeze(1) * frequency
        tiles = [tile for number, span in enumerate(batch.spans) for tile in self._tiles(batch.single + number, span)]
        tiles.sort(key=lambda tile: -tile[2])  # what sees most takes longest: begun first, nothing waits for it last
        listed = upload(np.array(tiles, dtype=np.int64), batch.positions.device) if tiles else None
        pages = attention.Pages(batch.block_table, batch.slots, batch.seq_lens)
        rotation = (turns.cos() * self._rule.stretch, turns.sin() * self._rule.stretch)
        return PagedStep(rotation, batch.slot_mapping, batch.single, pages, listed, self._rule)

    def _tiles(self, row: int, span: tuple[int, int, int]) -> list[tuple[int, int, int, int]]:
        begin, end, length = span
        first = length - (end - begin)
        return [(row, at, first + at - begin, min(self._tile, end - at)) for at in range(begin, end, self._tile)]


@dataclass(frozen=True, slots=True)
class PagedStep:
    """Angles, places and pages of one step."""

    rotation: tuple[torch.Tensor, torch.Tensor]
    slot_mapping: torch.Tensor
    single: int
    pages: attention.Pages
    tiles: torch.Tensor | None
    rule: Rule = PLAIN

    def store(self, qkv: torch.Tensor, cache: LayerCache) -> torch.Tensor:
        """As the protocol says."""
        return rotate_store(qkv, self.rotation, self.slot_mapping, cache.data, cache.scales)

    def attend(self, queries: torch.Tensor, cache: LayerCache) -> torch.Tensor:
        """As the protocol says."""
        out = torch.empty_like(queries)
        if self.single:
            attention.decode(queries[: self.single], cache.data, self.pages, out, self.rule, cache.scales)
        if self.tiles is not None:
            attention.prefill(queries, cache.data, self.pages, self.tiles, out, self.rule, cache.scales)
        return out.view(len(queries), -1)
