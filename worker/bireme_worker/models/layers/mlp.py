"""The gated MLP: gate and up packed into one column layer, down as a row layer."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, Protocol

import torch
from torch.nn import functional

from bireme_worker.models.layers.linear import ColumnLinear, Projection, RowLinear
from bireme_worker.models.shard import Shard
from bireme_worker.models.weight import Weight
from bireme_worker.parallel.communicator import Communicator


class MLP(Protocol):
    """What stands between a layer's second norm and its end."""

    @property
    def weights(self) -> list[Weight]:
        """Parameters in load order."""
        ...

    def __call__(self, x: torch.Tensor, communicator: Communicator) -> torch.Tensor: ...


Activation = Callable[[torch.Tensor], torch.Tensor]
ACTIVATIONS: Final[Mapping[str, Activation]] = {
    "silu": functional.silu,
    "relu": functional.relu,
    "gelu": functional.gelu,
    "gelu_new": partial(functional.gelu, approximate="tanh"),
    "gelu_pytorch_tanh": partial(functional.gelu, approximate="tanh"),
}


class GatedMLP:
    """``down(act(gate(x)) · up(x))``; the inner size is split over ranks."""

    def __init__(
        self,
        name: str,
        hidden: int,
        inner: int,
        shard: Shard,
        dtype: torch.dtype,
        *,
        bias: bool,
        activation: str = "silu",
        packed: bool = False,
    ) -> None:
        """``packed``: the checkpoint has gate and up in one matrix."""
        part = shard.part(inner, "intermediate_size channels")
        self._width = part.stop - part.start
        self._activation = ACTIVATIONS[activation]
        if packed:
            name_of_both, second = f"{name}.gate_up_proj", slice(inner + part.start, inner + part.stop)
            both = [Projection(name_of_both, 2 * inner, one) for one in (part, second)]
        else:
            both = [Projection(f"{name}.{one}", inner, part) for one in ("gate_proj", "up_proj")]
        self.gate_up = ColumnLinear(both, hidden, dtype, bias=bias)
        self.down = RowLinear(Projection(f"{name}.down_proj", inner, part), hidden, dtype, bias=bias)

    @property
    def weights(self) -> list[Weight]:
        """Parameters in load order."""
        return [*self.gate_up.weights, *self.down.weights]

    def __call__(self, x: torch.Tensor, communicator: Communicator) -> torch.Tensor:
        return self.down(self._gated(self.gate_up(x)), communicator)

    def _gated(self, gate_up: torch.Tensor) -> torch.Tensor:
        if gate_up.is_cuda and self._activation is functional.silu:
            from bireme_worker.kernels.layer import silu_mul  # noqa: PLC0415  Triton is there only beside a GPU

            return silu_mul(gate_up)
        return self._activation(gate_up[:, : self._width]).mul_(gate_up[:, self._width :])
