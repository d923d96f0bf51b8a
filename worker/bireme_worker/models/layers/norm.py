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

    def add(self, x: torch.Tensor, delta: torch.Tensor | None) -> torch.Tensor:
        """Add ``delta`` to ``x`` in place and return the norm of the sum."""
        if x.is_cuda:
            from bireme_worker.kernels.layer import add_norm  # noqa: PLC0415  Triton is there only beside a GPU

            return add_norm(x, delta, self.weight.tensor, self._eps)
        return self(x if delta is None else x.add_(delta))

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if x.dtype == torch.float32:
            return functional.rms_norm(x, self._shape, self.weight.tensor, self._eps)
        # The model's authors round to the model's dtype before the weight is applied.
        return functional.rms_norm(x.float(), self._shape, None, self._eps).to(x.dtype) * self.weight.tensor
