"""Root mean square norm, accumulated in float32 whatever the model's dtype."""

import torch
from torch.nn import functional

from bireme_worker.models.weight import Piece, Weight


class RMSNorm:
    """``x / sqrt(mean(x²) + eps) · weight`` over the last dimension; not sharded."""

    def __init__(self, name: str, size: int, eps: float, dtype: torch.dtype) -> None:
        self.weight = Weight((size,), dtype, (Piece(f"{name}.weight", (size,)),))
        self._eps = eps
        self._shape = (size,)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if x.dtype == torch.float32:
            return functional.rms_norm(x, self._shape, self.weight.tensor, self._eps)
        # The model's authors round to the model's dtype before the weight is applied.
        return functional.rms_norm(x.float(), self._shape, None, self._eps).to(x.dtype) * self.weight.tensor
