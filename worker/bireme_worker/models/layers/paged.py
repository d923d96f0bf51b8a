"""Attention on the GPU: our kernels read the paged cache where it lies.

One-token rows go through the decode kernel together, whose grid depends on their number alone; longer rows are cut into
tiles, listed on the host from the plan. Long contexts are gathered first where that is faster (flattening.py).
"""

from dataclasses import dataclass

import numpy as np
import torch

from bireme_worker.kernels import attention, flat
from bireme_worker.kernels.layer import rotate_store
from bireme_worker.models.batch import Batch
from bireme_worker.models.kv_cache import BLOCK_SIZE, LayerCache, pages_of
from bireme_worker.models.layers.attention import PLAIN, Rule
from bireme_worker.models.layers.flattening import Flattening
from bireme_worker.models.shard import HeadShard
from bireme_worker.models.transfer import upload


class PagedBackend:
    """The kernels' backend; every key-value head serves as many query heads (``HeadShard.is_even``)."""

    def __init__(self, heads: HeadShard, dtype: torch.dtype, rule: Rule = PLAIN, size: int = 0) -> None:
        """``size`` of a head; 0: nothing is gathered."""
        assert heads.is_even
        self.heads = heads
        self._rule = rule
        self._tile = attention.tile_tokens(heads.query_count, heads.kv_count, dtype)
        self._flattening = Flattening(heads, dtype, rule, size)
        self._scratch = flat.Scratch()

    def prepare(self, batch: Batch, frequency: torch.Tensor) -> "PagedStep":
        """Angles, and the tiles of longer rows; those of rows that are gathered come first."""
        turns = batch.positions.to(torch.float32).unsqueeze(1) * frequency
        device = batch.positions.device
        chosen = self._flattening.chosen(batch.spans, device)
        listed = [(number not in chosen, number, span) for number, span in enumerate(batch.spans)]
        tiles = [(later, *tile) for later, number, span in listed for tile in self._tiles(batch.single + number, span)]
        # What sees most takes longest: begun first, nothing waits for it last.
        tiles.sort(key=lambda tile: (tile[0], -tile[3]))
        gathered = sum(not tile[0] for tile in tiles)
        placed = upload(np.array([tile[1:] for tile in tiles], dtype=np.int64), device) if tiles else None
        pages = attention.Pages(batch.block_table, batch.slots, batch.seq_lens)
        rotation = (turns.cos() * self._rule.stretch, turns.sin() * self._rule.stretch)
        runs = self._runs(batch, chosen) if chosen else None
        return PagedStep(rotation, batch.slot_mapping, batch.single, pages, placed, self._rule, runs, gathered)

    def _runs(self, batch: Batch, chosen: list[int]) -> flat.Runs:
        spans = [batch.spans[number] for number in chosen]
        pages = []
        for number, (_, _, length) in zip(chosen, spans, strict=True):
            row = batch.single + number
            blocks = batch.block_table[:, : -(-length // BLOCK_SIZE)].index_select(0, batch.slots[row : row + 1])
            pages.append(pages_of(blocks).view(-1))
        return flat.Runs(spans, pages, self._scratch)

    def _tiles(self, row: int, span: tuple[int, int, int]) -> list[tuple[int, int, int, int]]:
        begin, end, length = span
        first = length - (end - begin)
        return [(row, at, first + at - begin, min(self._tile, end - at)) for at in range(begin, end, self._tile)]


@dataclass(frozen=True, slots=True)
class PagedStep:
    """Angles, places and pages of one step; the first ``gathered`` tiles are for where ``runs`` can't be."""

    rotation: tuple[torch.Tensor, torch.Tensor]
    slot_mapping: torch.Tensor
    single: int
    pages: attention.Pages
    tiles: torch.Tensor | None
    rule: Rule = PLAIN
    runs: flat.Runs | None = None
    gathered: int = 0

    def store(self, qkv: torch.Tensor, cache: LayerCache) -> torch.Tensor:
        """As the protocol says."""
        return rotate_store(qkv, self.rotation, self.slot_mapping, cache.data, cache.scales)

    def attend(self, queries: torch.Tensor, cache: LayerCache) -> torch.Tensor:
        """As the protocol says."""
        out = torch.empty_like(queries)
        if self.single:
            attention.decode(queries[: self.single], cache.data, self.pages, out, self.rule, cache.scales)
        tiles = self.tiles
        if tiles is not None and self.runs is not None and cache.scales is None and self.runs.fit(cache.data):
            self.runs.attend(queries, cache.data, out)
            tiles = tiles[self.gathered :]
        if tiles is not None and len(tiles):
            attention.prefill(queries, cache.data, self.pages, tiles, out, self.rule, cache.scales)
        return out.view(len(queries), -1)
