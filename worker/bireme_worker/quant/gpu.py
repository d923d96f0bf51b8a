"""Quantized matrices as the GPU's kernels want them; how they are laid out is decided here, at load.

The layout follows from the format and the sizes alone, so a model that waits in the host's memory for a reload is laid
out the same way, and changing weights is copying tensors. Matrices with the same inputs are joined into one. What the
kernels can't take (groups that 16 does not divide) keeps its first form and is expanded whenever it multiplies.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import torch
from torch.nn import functional

from bireme_worker.quant.matrix import Fp8Matrix, GroupedMatrix, Quantized, StackedMatrix
from bireme_worker.quant.rounding import unpack_nibbles

if TYPE_CHECKING:
    from bireme_worker.kernels.integers import Packed

LEAST_SPAN: Final = 16
"""Inputs of a matrix instruction: fewer can't share a scale."""
MOST_SPAN: Final = 64
TILE_ROWS: Final = 256
"""Above this many rows a matrix of integers is expanded once and multiplied by torch."""
FP8_TILE_ROWS: Final = 64
"""Above this many rows torch's scaled product is faster than ours."""
EXPANDED: Final = 1 << 27
"""Weights that are expanded at a time."""
FP8_CAPABILITY: Final = (8, 9)
"""The first GPUs that multiply fp8."""
SCALED_MULTIPLE: Final = 16
"""What torch's scaled product wants inputs and outputs to be multiples of."""


@dataclass(frozen=True, slots=True)
class TiledMatrix:
    """``(code − zero) · scale`` with groups of whole spans of inputs.

    Attributes:
        codes: uint8 ``[outputs, inputs · bits / 8]``; 4-bit codes of two spans share a span of bytes, the first below.
        scales: ``[outputs, groups]``.
        zeros: uint8 ``[outputs, groups]``; None is half of the range everywhere.
        order: which input each column takes; None: in order.
        span: inputs that a step of the kernels takes together; divides a group.
    """

    bits: int
    codes: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor | None
    order: torch.Tensor | None
    span: int

    def multiply(self, x: torch.Tensor) -> torch.Tensor:
        """As the protocol says."""
        from bireme_worker.kernels import integers  # noqa: PLC0415  Triton is there only beside a GPU

        x = _dense(x if self.order is None else x.index_select(1, self.order))
        if len(x) == 1:
            return integers.line(x, self._packed(slice(None)))
        if len(x) <= TILE_ROWS:
            return integers.tile(x, self._packed(slice(None)))
        y = x.new_empty((len(x), len(self.codes)))
        step = max(EXPANDED // x.shape[1], 1)
        for begin in range(0, len(self.codes), step):
            part = self._packed(slice(begin, begin + step))
            weights = integers.expand(part, x.new_empty((len(part.codes), x.shape[1])))
            torch.mm(x, weights.t(), out=y[:, begin : begin + step])
        return y

    def _packed(self, rows: slice) -> "Packed":
        from bireme_worker.kernels.integers import Packed  # noqa: PLC0415

        zeros = None if self.zeros is None else self.zeros[rows]
        return Packed(self.bits, self.codes[rows], self.scales[rows], zeros, self.span)

    def dequantized(self) -> torch.Tensor:
        """As the protocol says."""
        pairs = self.codes if self.bits == 8 else _pairs(self.codes, self.span)
        values = GroupedMatrix(self.bits, pairs, self.scales, self.zeros).dequantized()
        if self.order is None:
            return values
        whole = values.new_zeros((len(values), int(self.order.max()) + 1))
        return whole.index_add_(1, self.order, values)  # padding adds zero

    def tensors(self) -> tuple[torch.Tensor, ...]:
        """As the protocol says."""
        return tuple(part for part in (self.codes, self.scales, self.zeros, self.order) if part is not None)

    def to(self, device: torch.device) -> "TiledMatrix":
        """As the protocol says."""
        zeros, order = (None if part is None else part.to(device) for part in (self.zeros, self.order))
        return TiledMatrix(self.bits, self.codes.to(device), self.scales.to(device), zeros, order, self.span)


class GpuFp8Matrix(Fp8Matrix):
    """fp8 times fp8 on GPUs that can; elsewhere as on the CPU."""

    __slots__ = ()

    def multiply(self, x: torch.Tensor) -> torch.Tensor:
        """As the protocol says."""
        if not _multiplies_fp8(x.device):
            return Fp8Matrix.multiply(self, x)
        from bireme_worker.kernels import fp8  # noqa: PLC0415  Triton is there only beside a GPU

        rounded, scale = fp8.round_rows(_dense(x), self.input_scale)
        if len(x) == 1:
            return fp8.line(rounded, scale, self.values, self.scales, x.dtype)
        outputs, inputs = self.values.shape
        fits = x.dtype == torch.bfloat16 and outputs % SCALED_MULTIPLE == 0 and inputs % SCALED_MULTIPLE == 0
        if len(x) <= FP8_TILE_ROWS or not fits:
            return fp8.tile(rounded, scale, self.values, self.scales, x.dtype)
        product: torch.Tensor = torch._scaled_mm(  # noqa: SLF001  there is no public one in this version
            rounded, self.values.t(), scale, self.scales.unsqueeze(0), out_dtype=x.dtype, use_fast_accum=True
        )
        return product

    def to(self, device: torch.device) -> "GpuFp8Matrix":
        """As the protocol says."""
        scale = None if self.input_scale is None else self.input_scale.to(device)
        return GpuFp8Matrix(self.values.to(device), self.scales.to(device), scale)


def laid_out(matrix: Quantized) -> Quantized:
    """``matrix`` as the kernels of a GPU want it, on the device where it is."""
    match matrix:
        case StackedMatrix():
            return _joined([laid_out(part) for part in matrix.parts])
        case GroupedMatrix():
            return _tiled(matrix)
        case Fp8Matrix():
            return GpuFp8Matrix(matrix.values.contiguous(), matrix.scales, matrix.input_scale)
    return matrix


def _joined(parts: Sequence[Quantized]) -> Quantized:
    """One matrix of several, unless their inputs are permuted or rounded by themselves."""
    if all(isinstance(part, GpuFp8Matrix) and part.input_scale is None for part in parts):
        return GpuFp8Matrix(*(torch.cat(tensors) for tensors in zip(*(part.tensors() for part in parts), strict=True)))
    tiled = [part for part in parts if isinstance(part, TiledMatrix) and part.order is None]
    forms = {(part.bits, part.span, part.scales.shape[1], part.zeros is None) for part in tiled}
    if len(tiled) < len(parts) or len(forms) > 1:
        return StackedMatrix(tuple(parts))
    codes, scales, *zeros = (torch.cat(tensors) for tensors in zip(*(part.tensors() for part in tiled), strict=True))
    return TiledMatrix(tiled[0].bits, codes, scales, zeros[0] if zeros else None, None, tiled[0].span)


def _tiled(matrix: GroupedMatrix) -> Quantized:
    codes, scales, zeros, order = matrix.codes, matrix.scales, matrix.zeros, None
    if matrix.group_of is not None:
        codes = codes if matrix.bits == 8 else unpack_nibbles(codes)
        order, group_of, padded = _sorted(matrix.group_of, scales.shape[1])
        codes, scales = codes.index_select(1, order), scales.index_select(1, group_of)
        zeros = None if zeros is None else zeros.index_select(1, group_of)
        size = len(order) // len(group_of)
        middle = torch.full_like(codes[:, :1], 1 << (matrix.bits - 1)) if zeros is None else zeros
        middles = middle.expand(-1, len(group_of)).repeat_interleave(size, 1)
        codes = torch.where(padded, middles, codes)
    inputs = codes.shape[1] * (1 if order is not None else 8 // matrix.bits)
    span = _span(inputs // scales.shape[1], inputs, matrix.bits)
    if span < LEAST_SPAN:
        return matrix
    if matrix.bits == 4:
        codes = _halves(codes if order is not None else unpack_nibbles(codes), span)
    return TiledMatrix(matrix.bits, codes.contiguous(), scales.contiguous(), zeros, order, span)


def _span(group: int, inputs: int, bits: int) -> int:
    """The largest power of two that divides a group, and of which 8 / ``bits`` divide the inputs; 0 without any."""
    span = MOST_SPAN
    while span and (group % span or inputs % (span * 8 // bits)):
        span //= 2
    return span


def _sorted(group_of: torch.Tensor, groups: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Inputs in the order of their groups, the group of each run of equal length, and which columns are padding.

    A rank that holds some inputs of any group gets runs of 16, as many as there can be: the shapes must not depend on
    which inputs these are.
    """
    order = group_of.argsort(stable=True)
    counts = group_of.bincount(minlength=groups)
    if bool((counts == counts[0]).all()):
        every = torch.arange(groups, device=order.device)
        return order, every, torch.zeros_like(order, dtype=torch.bool)
    runs = -(-len(group_of) // LEAST_SPAN) + groups
    runs += runs % 2
    taken = (counts + LEAST_SPAN - 1) // LEAST_SPAN
    run_group = torch.arange(groups, device=order.device).repeat_interleave(taken)
    run_group = functional.pad(run_group, (0, runs - len(run_group)))
    places = torch.arange(runs * LEAST_SPAN, device=order.device)
    begins, starts = taken.cumsum(0) - taken, counts.cumsum(0) - counts
    group = run_group.repeat_interleave(LEAST_SPAN)
    within = places - begins.index_select(0, group) * LEAST_SPAN
    padded = within >= counts.index_select(0, group)
    source = torch.where(padded, 0, starts.index_select(0, group) + within)
    return order.index_select(0, source), run_group, padded


def _halves(codes: torch.Tensor, span: int) -> torch.Tensor:
    runs = codes.view(len(codes), -1, 2, span)
    return (runs[:, :, 0] | (runs[:, :, 1] << 4)).flatten(1)


def _pairs(codes: torch.Tensor, span: int) -> torch.Tensor:
    runs = codes.view(len(codes), -1, span)
    whole = torch.stack((runs & 15, runs >> 4), 2).flatten(1)
    return whole[:, ::2] | (whole[:, 1::2] << 4)


def _dense(x: torch.Tensor) -> torch.Tensor:
    """Rows may lie apart, their values not."""
    return x if x.stride(1) == 1 else x.contiguous()


@lru_cache
def _multiplies_fp8(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= FP8_CAPABILITY
