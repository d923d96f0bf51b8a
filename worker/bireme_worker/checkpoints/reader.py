"""The one interface through which the model code reads weights, whatever the file format.

Names and shapes are those of Hugging Face's Llama (`model.layers.0.self_attn.q_proj.weight`, rows = outputs). A read
copies exactly the asked slice out of a mapping of the file, so a rank's anonymous memory grows by its share and no
more.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor of a checkpoint; ``dtype`` is that of the tensors which ``read`` returns."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    file: Path


class CheckpointReader(Protocol):
    """An open checkpoint whose files have been checked against their headers.

    ``config`` and ``generation_config`` have the keys of the Hugging Face files of these names.
    """

    config: Mapping[str, Any]
    generation_config: Mapping[str, Any]
    tensors: Mapping[str, TensorInfo]

    def read(self, name: str, slices: tuple[slice, ...] = ()) -> torch.Tensor:
        """Copy one slice: contiguous, on the CPU; leading dimensions first, missing ones whole.

        Raises:
            MissingTensor: no tensor of this name.
            TruncatedFile: the file became shorter since it was opened.
            ValueError: a slice with a step or over the border of the tensor, which is a fault of the caller.
        """
        ...

    def close(self) -> None:
        """Unmap the files. Tensors that were read stay valid."""
        ...


def bounds(info: TensorInfo, slices: tuple[slice, ...]) -> tuple[tuple[int, int], ...]:
    """Return (start, stop) per dimension. Python would clamp a slice that is too long; a shard must never be short."""
    if len(slices) > len(info.shape):
        raise ValueError(f"{info.name} has shape {info.shape}: {len(slices)} slices are too many")
    whole = (slice(None),) * (len(info.shape) - len(slices))
    return tuple(_bounds_of(info, dim, one) for dim, one in enumerate((*slices, *whole)))


def _bounds_of(info: TensorInfo, dim: int, one: slice) -> tuple[int, int]:
    size = info.shape[dim]
    start = 0 if one.start is None else one.start
    stop = size if one.stop is None else one.stop
    if one.step not in {None, 1} or not 0 <= start <= stop <= size:
        raise ValueError(f"{info.name} has shape {info.shape}: slice {start}:{stop}:{one.step} of dimension {dim}")
    return start, stop
