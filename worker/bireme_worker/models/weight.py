"""A parameter of a rank: where its values come from, and the tensor that holds them.

Building a model makes only these descriptions (on the meta device, no memory), so the same code says what a checkpoint
must contain, what each rank reads of it, and what a stage will need.
"""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Piece:
    """A slice of one checkpoint tensor of ``shape``, filling the rows of a parameter from ``at`` on.

    ``slices``: one per leading dimension that is cut.
    """

    source: str
    shape: tuple[int, ...]
    slices: tuple[slice, ...] = ()
    at: int = 0

    @property
    def rows(self) -> range:
        """The rows of the checkpoint tensor that are read."""
        return range(self.shape[0])[self.slices[0]] if self.slices else range(self.shape[0])


class Weight:
    """One parameter; ``tensor`` is on the meta device until it is loaded. Rows that no piece fills are zero.

    A weight that only ``multiplies`` may be packed by the loader.
    """

    __slots__ = ("multiplies", "pieces", "tensor")

    def __init__(
        self, shape: tuple[int, ...], dtype: torch.dtype, pieces: tuple[Piece, ...], *, multiplies: bool = False
    ) -> None:
        self.pieces = pieces
        self.multiplies = multiplies
        self.tensor = torch.empty(shape, dtype=dtype, device="meta")

    @property
    def nbytes(self) -> int:
        """Bytes that this parameter takes on its device."""
        return self.tensor.numel() * self.tensor.element_size()
