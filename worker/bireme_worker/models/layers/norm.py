"""Root mean square norm, accumulated in float32 whatever the model's dtype."""

import torch
from torch.nn import functional

from bireme_worker.models.weight import Piece, Weight


class RMSNorm:
    """``x / sqrt(mean(x²) + eps) · weight`` over the last dimension; not sharded.

    ``from_one`` (Gemma): the weight is what is added to one, and the product is taken before anything is rounded.
    """

    def __init__(self, name: str, size: int, eps: float, dtype: torch.dtype, *, from_one: bool = False) -> None:
        self.weight = Weight((size,), dtype, (Piece(f"{name}.weight", (size,)),))
        self._eps = eps
        self._floor = torch.tensor(eps, dtype=torch.float32)
        self._shape = (size,)
        self._from_one = from_one

    def add(self, x: torch.Tensor, delta: torch.Tensor | None) -> torch.Tensor:
        """Add ``delta`` to ``x`` in place and return the norm of the sum."""
        if x.is_cuda:
            from bireme_worker.kernels.layer import add_norm  # noqa: PLC0415  Triton is there only beside a GPU

            return add_norm(x, delta, self.weight.tensor, self._eps, from_one=self._from_one)
        return self(x if delta is None else x.add_(delta))

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self._from_one:
            return functional.rms_norm(x.float(), self._shape, self.weight.tensor.float() + 1, self._eps).to(x.dtype)
        if x.dtype == torch.float32:
            length: torch.Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
            return (x * self._square(length, 1 / x.shape[-1]).rsqrt_()).mul_(self.weight.tensor)
        # The model's authors round to the model's dtype before the weight is applied.
        return functional.rms_norm(x.float(), self._shape, None, self._eps).to(x.dtype) * self.weight.tensor

    def _square(self, length: torch.Tensor, factor: float) -> torch.Tensor:
        """``length² · factor + eps``. On a CPU beside one row's products each operation counts: there it is one."""
        if length.is_cuda:
            return length.square_().mul_(factor).add_(self._eps)
        return torch.addcmul(self._floor, length, length, value=factor)
