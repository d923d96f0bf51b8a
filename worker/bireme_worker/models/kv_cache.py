"""The paged key-value cache of one stage, allocated once at a fixed address; it outlives epochs.

Block ids are the coordinator's and mean the same on every rank and stage; block 0 is padding. A new epoch starts with
an empty block table, not with new memory.
"""

from typing import Final

import torch

BLOCK_SIZE: Final = 16
"""Tokens per block; the coordinator counts in the same unit."""


class LayerCache:
    """``data [blocks, 2, block size, heads, head_dim]``: keys and values of one layer, and the views onto them."""

    def __init__(self, data: torch.Tensor) -> None:
        blocks, _, size, heads, head_dim = data.shape
        self.data = data
        self._rows = data.view(blocks * 2 * size, heads, head_dim)
        self._pages = data.view(blocks * 2, size * heads * head_dim)
        self._tail = (heads, head_dim)

    def write(self, key_rows: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Store ``keys`` and ``values [tokens, heads, head_dim]``; ``key_rows`` comes from ``key_rows_of``."""
        self._rows.index_copy_(0, key_rows, keys)
        self._rows.index_copy_(0, key_rows + BLOCK_SIZE, values)

    def read(self, key_pages: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values ``[rows, tokens, heads, head_dim]`` of blocks ``key_pages [rows, blocks]`` (2 × block id)."""
        shape = (key_pages.shape[0], key_pages.shape[1] * BLOCK_SIZE, *self._tail)
        flat = key_pages.reshape(-1)
        keys = self._pages.index_select(0, flat).view(shape)
        return keys, self._pages.index_select(0, flat + 1).view(shape)


class KVCache:
    """All layers of a stage on one rank."""

    def __init__(
        self, *, layers: int, blocks: int, heads: int, head_dim: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.blocks = blocks
        # Not filled: pages of the pool become real memory only when blocks are used.
        self._data = torch.empty((layers, blocks, 2, BLOCK_SIZE, heads, head_dim), dtype=dtype, device=device)
        self._data[:, 0].zero_()
        self.layers = [LayerCache(layer) for layer in self._data]

    @property
    def address(self) -> int:
        """Where the pool lies; never changes."""
        return self._data.data_ptr()

    def clear(self, blocks: torch.Tensor) -> None:
        """Zero ``blocks`` before a sequence takes them.

        Attention reads whole blocks and masks what is not written yet, but a masked NaN is still NaN: without this, one
        request's broken values would spoil the next owner of its blocks. The GPU's kernels load no place that is not
        written.
        """
        if self._data.is_cuda:
            return
        self._data.index_fill_(1, blocks, 0)


def key_rows_of(slot_mapping: torch.Tensor) -> torch.Tensor:
    """Row of a token's key in the flat cache: every block holds its keys, then its values."""
    return slot_mapping + slot_mapping // BLOCK_SIZE * BLOCK_SIZE


def block_bytes(layers: int, heads: int, head_dim: int, dtype: torch.dtype) -> int:
    """Bytes of one block over all ``layers`` of a stage on one rank."""
    return layers * 2 * BLOCK_SIZE * heads * head_dim * dtype.itemsize
