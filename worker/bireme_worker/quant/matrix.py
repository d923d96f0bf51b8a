"""Matrices that stay packed in memory and multiply by what they stand for.

On the CPU a few rows at a time are expanded into a scratch tile that stays in the core's cache, and multiplied in the
model's dtype: torch's own packed products are fast for bfloat16 alone. Measured with 4-bit weights of 4096 × 4096, one
row, one thread of an AMD EPYC: expanding takes 5 ms, where it took 30 with nibbles written one by one.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Protocol

import torch
from torch.nn import functional

TILE: Final = 1 << 18
"""Weights that are expanded at a time: 1 MiB in float32."""
FP8: Final = torch.float8_e4m3fn
FP8_MAX: Final = 448.0


class Quantized(Protocol):
    """What a quantized weight holds in place of a plain tensor; a GPU kernel is another ``multiply``."""

    def multiply(self, x: torch.Tensor) -> torch.Tensor:
        """``x [rows, inputs] → [rows, outputs]``."""
        ...

    def dequantized(self) -> torch.Tensor:
        """The whole matrix in float32."""
        ...

    def tensors(self) -> tuple[torch.Tensor, ...]:
        """What it keeps in memory, in a fixed order."""
        ...

    def to(self, device: torch.device) -> "Quantized":
        """The same matrix on a device."""
        ...


@dataclass(frozen=True, slots=True)
class GroupedMatrix:
    """``(code − zero) · scale``, with a scale and zero per group of inputs.

    Attributes:
        codes: uint8 ``[outputs, inputs · bits / 8]``; of two 4-bit codes in a byte the lower half is the first input.
        scales: ``[outputs, groups]``.
        zeros: uint8 ``[outputs, groups]``; None is half of the range everywhere.
        group_of: ``[inputs]`` the group of each input; None: groups are runs of equal length.
    """

    bits: int
    codes: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor | None = None
    group_of: torch.Tensor | None = None

    def multiply(self, x: torch.Tensor) -> torch.Tensor:
        """As the protocol says."""
        y = x.new_empty((len(x), len(self.codes)))
        step = len(self.codes) if x.is_cuda else max(TILE // x.shape[1], 16)
        for begin in range(0, len(self.codes), step):
            rows = slice(begin, begin + step)
            y[:, rows] = functional.linear(x, self.expand(rows).to(x.dtype))
        return y

    def expand(self, rows: slice) -> torch.Tensor:
        """Some rows in float32."""
        codes = self.codes[rows]
        if self.bits == 4:
            wide = codes.to(torch.int16)
            codes = ((wide | (wide << 4)) & 0x0F0F).view(torch.uint8)
        values, scales = codes.to(torch.float32), self.scales[rows].float()
        zeros = None if self.zeros is None else self.zeros[rows].float()
        if self.group_of is not None:
            shift = 1 << (self.bits - 1) if zeros is None else zeros.index_select(1, self.group_of)
            return values.sub_(shift).mul_(scales.index_select(1, self.group_of))
        grouped = values.view(len(values), scales.shape[1], -1)
        grouped.sub_(1 << (self.bits - 1) if zeros is None else zeros.unsqueeze(2)).mul_(scales.unsqueeze(2))
        return values

    def dequantized(self) -> torch.Tensor:
        """As the protocol says."""
        return self.expand(slice(None))

    def tensors(self) -> tuple[torch.Tensor, ...]:
        """As the protocol says."""
        return tuple(part for part in (self.codes, self.scales, self.zeros, self.group_of) if part is not None)

    def to(self, device: torch.device) -> "GroupedMatrix":
        """As the protocol says."""
        zeros = None if self.zeros is None else self.zeros.to(device)
        group_of = None if self.group_of is None else self.group_of.to(device)
        return GroupedMatrix(self.bits, self.codes.to(device), self.scales.to(device), zeros, group_of)


@dataclass(frozen=True, slots=True)
class Fp8Matrix:
    """fp8 weights ``[outputs, inputs]`` with float32 ``scales [outputs]``; the inputs are rounded to fp8 too (W8A8).

    ``input_scale`` is one number for all inputs, or None: then every token is scaled by its own largest value, so that
    no token depends on what it is batched with.
    """

    values: torch.Tensor
    scales: torch.Tensor
    input_scale: torch.Tensor | None = None

    def multiply(self, x: torch.Tensor) -> torch.Tensor:
        """As the protocol says; the sums are those of float32."""
        rounded = round_inputs(x.float(), self.input_scale)
        y = x.new_empty((len(x), len(self.values)))
        for rows in _tiles(len(self.values), x.shape[1]):
            y[:, rows] = functional.linear(rounded, self.values[rows].float()).mul_(self.scales[rows])
        return y

    def dequantized(self) -> torch.Tensor:
        """As the protocol says."""
        return self.values.float() * self.scales.unsqueeze(1)

    def tensors(self) -> tuple[torch.Tensor, ...]:
        """As the protocol says."""
        return (self.values, self.scales, *([] if self.input_scale is None else [self.input_scale]))

    def to(self, device: torch.device) -> "Fp8Matrix":
        """As the protocol says."""
        scale = None if self.input_scale is None else self.input_scale.to(device)
        return Fp8Matrix(self.values.to(device), self.scales.to(device), scale)


@dataclass(frozen=True, slots=True)
class StackedMatrix:
    """Several matrices that have the same inputs, such as queries, keys and values, each with its own scales."""

    parts: tuple[Quantized, ...]

    def multiply(self, x: torch.Tensor) -> torch.Tensor:
        """As the protocol says."""
        return torch.cat([part.multiply(x) for part in self.parts], dim=1)

    def dequantized(self) -> torch.Tensor:
        """As the protocol says."""
        return torch.cat([part.dequantized() for part in self.parts])

    def tensors(self) -> tuple[torch.Tensor, ...]:
        """As the protocol says."""
        return tuple(tensor for part in self.parts for tensor in part.tensors())

    def to(self, device: torch.device) -> "StackedMatrix":
        """As the protocol says."""
        return StackedMatrix(tuple(part.to(device) for part in self.parts))


def round_inputs(x: torch.Tensor, scale: torch.Tensor | None) -> torch.Tensor:
    """``x [rows, inputs]`` as fp8 holds it, in float32."""
    if scale is None:
        scale = x.abs().amax(1, keepdim=True).div_(FP8_MAX).clamp_(min=1e-12)
    return (x / scale).clamp_(-FP8_MAX, FP8_MAX).to(FP8).float().mul_(scale)


def _tiles(outputs: int, inputs: int) -> Iterator[slice]:
    step = max(TILE // inputs, 16)
    return (slice(begin, begin + step) for begin in range(0, outputs, step))
