"""The gated MLP: gate and up packed into one column layer, down as a row layer."""

import torch
from torch.nn import functional

from bireme_worker.models.layers.linear import ColumnLinear, Projection, RowLinear
from bireme_worker.models.shard import Shard
from bireme_worker.models.weight import Weight
from bireme_worker.parallel.communicator import Communicator


class GatedMLP:
    """``down(silu(gate(x)) · up(x))``; the inner size is split over ranks."""

    def __init__(self, name: str, hidden: int, inner: int, shard: Shard, dtype: torch.dtype, *, bias: bool) -> None:
        part = shard.part(inner, "intermediate_size channels")
        self._width = part.stop - part.start
        packed = [Projection(f"{name}.{one}", inner, part) for one in ("gate_proj", "up_proj")]
        self.gate_up = ColumnLinear(packed, hidden, dtype, bias=bias)
        self.down = RowLinear(Projection(f"{name}.down_proj", inner, part), hidden, dtype, bias=bias)

    @property
    def weights(self) -> list[Weight]:
        """Parameters in load order."""
        return [*self.gate_up.weights, *self.down.weights]

    def __call__(self, x: torch.Tensor, communicator: Communicator) -> torch.Tensor:
        return self.down(self._gated(self.gate_up(x)), communicator)

    def _gated(self, gate_up: torch.Tensor) -> torch.Tensor:
        if gate_up.is_cuda:
            from bireme_worker.kernels.layer import silu_mul  # noqa: PLC0415  Triton is there only beside a GPU

            return silu_mul(gate_up)
        return functional.silu(gate_up[:, : self._width]).mul_(gate_up[:, self._width :])
