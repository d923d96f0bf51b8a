"""Round-to-nearest: what plain weights become when a deployment asks for quantization at load.

Symmetric, a scale per 64 inputs. The value of largest magnitude in a group gets the code farthest from zero, whatever
its sign, so that all codes are used: with 4 bits that is a sixteenth less error than a scale for both signs alike.
"""

import torch

from bireme_worker.quant.matrix import FP8, FP8_MAX


def round_groups(weights: torch.Tensor, bits: int, group: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes uint8 ``[rows, inputs]`` and float16 scales ``[rows, groups]`` of float ``weights [rows, inputs]``."""
    half = 1 << (bits - 1)
    grouped = weights.float().view(len(weights), -1, group)
    farthest = grouped.gather(2, grouped.abs().argmax(2, keepdim=True))
    scales = (farthest / -half).half()
    inverse = torch.where(scales == 0, 0.0, 1 / scales.float())
    codes = (grouped * inverse).round_().add_(half).clamp_(0, 2 * half - 1)
    return codes.to(torch.uint8).view(weights.shape), scales.squeeze(2)


def pack_nibbles(codes: torch.Tensor) -> torch.Tensor:
    """Two 4-bit codes in each byte: ``[rows, inputs] → [rows, inputs / 2]``."""
    return codes[:, ::2] | (codes[:, 1::2] << 4)


def unpack_nibbles(packed: torch.Tensor) -> torch.Tensor:
    """The way back."""
    return torch.stack((packed & 15, packed >> 4), dim=2).view(len(packed), -1)


def round_fp8(weights: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """fp8 values ``[rows, inputs]`` and float32 scales ``[rows]``."""
    wide = weights.float()
    scales = wide.abs().amax(1).div_(FP8_MAX).clamp_(min=1e-12)
    return (wide / scales.unsqueeze(1)).clamp_(-FP8_MAX, FP8_MAX).to(FP8), scales
