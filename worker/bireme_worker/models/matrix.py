"""Weights in the layout in which a CPU multiplies fastest, and the fastest product on each device.

oneDNN packs a float32 matrix once at load. Measured beside the plain layout (MKL, one thread of an AMD EPYC): one row
1.6 times, eight rows 2 times, a prompt 2.3 times faster, a large output head 3 times. The plain matrix is given up, so
a weight is in memory once; where torch has no oneDNN, and for other dtypes, it stays as it is.
"""

from typing import Final

import torch
from torch.nn import functional

from bireme_worker.quant.matrix import Quantized

_TYPICAL_ROWS: Final = 64
"""The row count that the packing is told; the layout then serves every count."""
_SLOW_OUTPUTS: Final = 1024
_SLOW_INPUTS: Final = 1024
"""Under this many inputs, a multiple of 1,024 outputs takes two to three times as long as any other count (oneDNN
3.10): such a matrix gets a few rows more."""
_EXTRA_ROWS: Final = 16


def pack(matrix: torch.Tensor) -> torch.Tensor:
    """``matrix [outputs, inputs]`` as ``multiply`` wants it: an opaque tensor of at least this size, or itself."""
    has_onednn: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    if matrix.dtype != torch.float32 or not matrix.is_cpu or not has_onednn:
        return matrix
    if matrix.shape[0] % _SLOW_OUTPUTS == 0 and matrix.shape[1] < _SLOW_INPUTS:
        matrix = functional.pad(matrix, (0, 0, 0, _EXTRA_ROWS))
    packed: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight(matrix, _TYPICAL_ROWS)  # noqa: SLF001
    return packed


def multiply(x: torch.Tensor, matrix: torch.Tensor | Quantized, outputs: int) -> torch.Tensor:
    """``x [rows, inputs] · matrixᵀ → [rows, outputs]``; the rows may lie further apart than ``outputs``."""
    if not isinstance(matrix, torch.Tensor):
        return matrix.multiply(x)
    if x.is_cuda:
        from bireme_worker.kernels.gemv import gemv  # noqa: PLC0415  Triton is there only beside a GPU

        return gemv(x, matrix) if len(x) == 1 else functional.linear(x, matrix)
    if not matrix.is_mkldnn:
        return functional.linear(x, matrix)
    y: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, matrix, None, "none", [], "")  # noqa: SLF001
    return y if y.shape[1] == outputs else y[:, :outputs]  # a view takes a microsecond, too
