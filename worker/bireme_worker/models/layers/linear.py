"""Linear layers cut by output (column) or by input (row), several projections packed into one matrix.

A column layer leaves its output sharded and needs no exchange; a row layer sums over ranks. Between them lies whatever
works on separate heads or channels.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from bireme_worker.models.matrix import multiply
from bireme_worker.models.weight import Piece, Weight
from bireme_worker.parallel.communicator import Communicator


@dataclass(frozen=True, slots=True)
class Projection:
    """One checkpoint matrix that is cut along a dimension of ``size``, of which this rank takes ``part``.

    ``transposed``: the checkpoint has inputs × outputs.
    """

    name: str
    size: int
    part: slice
    transposed: bool = False

    def outputs_piece(self, inputs: int, at: int) -> Piece:
        """Some outputs of a matrix with ``inputs``."""
        if self.transposed:
            return Piece(f"{self.name}.weight", (inputs, self.size), (slice(0, inputs), self.part), at, transposed=True)
        return Piece(f"{self.name}.weight", (self.size, inputs), (self.part,), at)

    def inputs_piece(self, outputs: int) -> Piece:
        """Some inputs of a matrix with ``outputs``."""
        whole = slice(0, outputs)
        if self.transposed:
            return Piece(f"{self.name}.weight", (self.size, outputs), (self.part, whole), transposed=True)
        return Piece(f"{self.name}.weight", (outputs, self.size), (whole, self.part))


class ColumnLinear:
    """``[tokens, inputs] → [tokens, sum of the parts]``: each rank computes some outputs of every projection."""

    def __init__(self, projections: Sequence[Projection], inputs: int, dtype: torch.dtype, *, bias: bool) -> None:
        matrices, vectors, at = [], [], 0
        for one in projections:
            matrices.append(one.outputs_piece(inputs, at))
            vectors.append(Piece(f"{one.name}.bias", (one.size,), (one.part,), at))
            at += one.part.stop - one.part.start
        self._outputs = at
        adapts = not any(one.transposed for one in projections)
        self.weight = Weight((at, inputs), dtype, tuple(matrices), multiplies=True, adapts=adapts, quantizes=True)
        self.bias = Weight((at,), dtype, tuple(vectors)) if bias else None

    @property
    def weights(self) -> list[Weight]:
        """Parameters in load order."""
        return [self.weight] if self.bias is None else [self.weight, self.bias]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        y = multiply(x, self.weight.matrix, self._outputs)
        if self.weight.low_rank is not None:
            self.weight.low_rank.add(x, y)
        return y if self.bias is None else y.add_(self.bias.tensor)


class RowLinear:
    """``[tokens, part] → [tokens, outputs]``: each rank multiplies its inputs, the results are summed over ranks."""

    def __init__(self, one: Projection, outputs: int, dtype: torch.dtype, *, bias: bool) -> None:
        self._outputs = outputs
        width = one.part.stop - one.part.start
        pieces = (one.inputs_piece(outputs),)
        self.weight = Weight(
            (outputs, width), dtype, pieces, multiplies=True, adapts=not one.transposed, quantizes=True
        )
        self.bias = Weight((outputs,), dtype, (Piece(f"{one.name}.bias", (outputs,)),)) if bias else None

    @property
    def weights(self) -> list[Weight]:
        """Parameters in load order."""
        return [self.weight] if self.bias is None else [self.weight, self.bias]

    def __call__(self, x: torch.Tensor, communicator: Communicator) -> torch.Tensor:
        y = self.partial(x)
        communicator.all_reduce(y)
        # The bias comes after the sum: every rank holds it whole.
        return y if self.bias is None else y.add_(self.bias.tensor)

    def partial(self, x: torch.Tensor) -> torch.Tensor:
        """This rank's term of the sum, without bias."""
        y = multiply(x, self.weight.matrix, self._outputs).contiguous()
        if self.weight.low_rank is not None:
            self.weight.low_rank.add(x, y)
        return y
