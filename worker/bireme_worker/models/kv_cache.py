"""The paged key-value cache of one stage, allocated once at a fixed address; it outlives epochs.

Block ids are the coordinator's and mean the same on every rank and stage; block 0 is padding. A new epoch starts with
an empty block table, not with new memory.
"""

from typing import Final

import torch

FORMATS: Final = {"int8": (torch.int8, 127.0), "fp8": (torch.float8_e4m3fn, 448.0)}
"""Packed formats of a cache: dtype and largest value."""
BLOCK_SIZE: Final = 16
"""Tokens per block; the coordinator counts in the same unit."""


class LayerCache:
    """``data [blocks, 2, block size, heads, head_dim]``: keys and values of one layer, and the views onto them."""

    scales: torch.Tensor | None = None

    def __init__(self, data: torch.Tensor) -> None:
        blocks, _, size, heads, head_dim = data.shape
        self.data = data
        self._rows = data.view(blocks * 2 * size, heads, head_dim)
        self._pages = data.view(blocks * 2, size * heads * head_dim)
        self._tail = (heads, head_dim)

    def write(self, places: torch.Tensor, values: torch.Tensor) -> None:
        """Store ``values [tokens, 2, heads, head_dim]``, each token's key and value, at ``places_of`` its slot."""
        self._rows.index_put_((places,), values)

    def read(self, pages: torch.Tensor) -> torch.Tensor:
        """Keys and values ``[2, rows, tokens, heads, head_dim]`` of the blocks that ``pages_of`` named."""
        return self._pages.index_select(0, pages.view(-1)).view(self._shape(pages))

    def _shape(self, pages: torch.Tensor) -> tuple[int, ...]:
        return (2, pages.shape[1], pages.shape[2] * BLOCK_SIZE, *self._tail)


class PackedLayerCache(LayerCache):
    """Keys and values in 8 bits, each head of each token with a float32 scale of its own, so that what was stored never
    depends on what came after it.

    ``data`` has one byte a value, ``scales [blocks, 2, block size, heads]``; reads are in ``dtype``. The GPU's kernels
    read and write the same memory in the same sense.
    """

    def __init__(self, data: torch.Tensor, scales: torch.Tensor, packed: str, dtype: torch.dtype) -> None:
        super().__init__(data)
        blocks, _, size, heads = scales.shape
        self._scale_rows = scales.view(blocks * 2 * size, heads)
        self._scale_pages = scales.view(blocks * 2, size * heads)
        self._format, self._largest = FORMATS[packed]
        self.data, self.scales = data.view(self._format), scales
        self._dtype = dtype

    def write(self, places: torch.Tensor, values: torch.Tensor) -> None:
        """As in a plain cache."""
        wide = values.float()
        scales = wide.abs().amax(3).div_(self._largest)
        scaled = wide / scales.clamp(min=1e-30).unsqueeze(3)
        if self._format == torch.int8:
            scaled = scaled.round_()
        packed = scaled.clamp_(-self._largest, self._largest).to(self._format)
        self._rows.index_put_((places,), packed.view(torch.uint8))
        self._scale_rows.index_put_((places,), scales)

    def read(self, pages: torch.Tensor) -> torch.Tensor:
        """As in a plain cache."""
        flat, shape = pages.view(-1), self._shape(pages)
        packed = self._pages.index_select(0, flat).view(self._format).view(shape)
        scales = self._scale_pages.index_select(0, flat).view(*shape[:4], 1)
        return packed.float().mul_(scales).to(self._dtype)


class KVCache:
    """All layers of a stage on one rank; ``packed`` is a key of ``FORMATS``, or "auto" for the model's ``dtype``."""

    def __init__(
        self,
        *,
        layers: int,
        blocks: int,
        heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
        packed: str = "auto",
    ) -> None:
        self.blocks = blocks
        shape, small = (layers, blocks, 2, BLOCK_SIZE, heads, head_dim), packed in FORMATS
        # Not filled: pages of the pool become real memory only when blocks are used.
        self._data = torch.empty(shape, dtype=torch.uint8 if small else dtype, device=device)
        self._scales = torch.empty(shape[:-1] if small else (layers, 1), dtype=torch.float32, device=device)
        self.layers: list[LayerCache] = (
            [PackedLayerCache(*pair, packed, dtype) for pair in zip(self._data, self._scales, strict=True)]
            if small
            else [LayerCache(layer) for layer in self._data]
        )
        self._zero(torch.zeros(1, dtype=torch.int64, device=device))

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
        self._zero(blocks)

    def _zero(self, blocks: torch.Tensor) -> None:
        self._data.index_fill_(1, blocks, 0)
        if self._scales.dim() > 2:
            self._scales.index_fill_(1, blocks, 0)


def places_of(slot_mapping: torch.Tensor) -> torch.Tensor:
    """Rows ``[tokens, 2]`` of each token's key and value in the flat cache: a block holds its keys, then its values."""
    keys = slot_mapping + slot_mapping // BLOCK_SIZE * BLOCK_SIZE
    return torch.stack((keys, keys + BLOCK_SIZE), 1)


def pages_of(blocks: torch.Tensor) -> torch.Tensor:
    """Where the keys and the values ``[2, rows, blocks]`` of ``blocks [rows, blocks]`` lie."""
    keys = blocks * 2
    return torch.stack((keys, keys + 1))


def block_bytes(layers: int, heads: int, head_dim: int, dtype: torch.dtype, packed: str = "auto") -> int:
    """Bytes of one block over all ``layers`` of a stage on one rank."""
    head = head_dim + torch.float32.itemsize if packed in FORMATS else head_dim * dtype.itemsize
    return layers * 2 * BLOCK_SIZE * heads * head
