"""A parameter of a rank: where its values come from, and the tensor that holds them.

Building a model makes only these descriptions (on the meta device, no memory), so the same code says what a checkpoint
must contain, what each rank reads of it, and what a stage will need.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from bireme_worker.models.lora import LowRank
    from bireme_worker.quant.matrix import Quantized


@dataclass(frozen=True, slots=True)
class Piece:
    """A slice of one checkpoint tensor of ``shape``, filling the rows of a parameter from ``at`` on.

    ``slices``: one per leading dimension that is cut. ``transposed``: the checkpoint has inputs × outputs (GPT-2).
    """

    source: str
    shape: tuple[int, ...]
    slices: tuple[slice, ...] = ()
    at: int = 0
    transposed: bool = False

    @property
    def rows(self) -> range:
        """The rows (transposed: columns) of the checkpoint tensor that are read."""
        if self.transposed:
            return range(self.shape[1])[self.slices[1]]
        return range(self.shape[0])[self.slices[0]] if self.slices else range(self.shape[0])


class Weight:
    """One parameter; ``tensor`` is on the meta device until it is loaded. Rows that no piece fills are zero.

    A weight that only ``multiplies`` may be packed by the loader; on one that ``adapts``, LoRA adapters may hang; one
    that ``quantizes`` may have ``quantized`` in place of ``tensor``, which then has no memory.
    """

    __slots__ = ("adapts", "low_rank", "multiplies", "pieces", "quantized", "quantizes", "tensor")

    def __init__(
        self,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        pieces: tuple[Piece, ...],
        *,
        multiplies: bool = False,
        adapts: bool = False,
        quantizes: bool = False,
    ) -> None:
        self.adapts = adapts
        self.quantizes = quantizes
        self.quantized: Quantized | None = None
        self.low_rank: LowRank | None = None
        self.pieces = pieces
        self.multiplies = multiplies
        self.tensor = torch.empty(shape, dtype=dtype, device="meta")

    @property
    def matrix(self) -> "torch.Tensor | Quantized":
        """What to multiply by."""
        return self.tensor if self.quantized is None else self.quantized

    def tensors(self) -> tuple[torch.Tensor, ...]:
        """All that it keeps on its device."""
        return (self.tensor,) if self.quantized is None else self.quantized.tensors()

    @property
    def nbytes(self) -> int:
        """Bytes that this parameter takes on its device."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors())
