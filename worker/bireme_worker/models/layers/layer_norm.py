"""Layer norm with weight and bias, accumulated in float32 whatever the model's dtype; not sharded."""

import torch
from torch.nn import functional

from bireme_worker.models.weight import Piece, Weight


class LayerNorm:
    """``(x - mean) / sqrt(variance + eps) · weight + bias`` over the last dimension."""

    def __init__(self, name: str, size: int, eps: float, dtype: torch.dtype) -> None:
        self.weight = Weight((size,), dtype, (Piece(f"{name}.weight", (size,)),))
        self.bias = Weight((size,), dtype, (Piece(f"{name}.bias", (size,)),))
        self._eps = eps
        self._shape = (size,)

    @property
    def weights(self) -> list[Weight]:
        """Parameters in load order."""
        return [self.weight, self.bias]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return functional.layer_norm(x, self._shape, self.weight.tensor, self.bias.tensor, self._eps)
