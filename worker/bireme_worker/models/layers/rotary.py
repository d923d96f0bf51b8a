"""Rotary position embedding, with all scalings of the frequencies.

The angles of a step are computed once and shared by all layers: a table over the whole context would cost more memory
than a small model's share. Halves rotate against each other, the layout of Hugging Face checkpoints.
"""

import math

import torch

from bireme_worker.checkpoints.rope import LinearRope, Llama3Rope, LongRope, Rope, YarnRope


def frequencies(head_dim: int, theta: float, scaling: Rope | None) -> torch.Tensor:
    """Radians per position for each of the ``head_dim / 2`` pairs, float32."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    plain = 1.0 / (theta**exponents)
    match scaling:
        case LinearRope(factor):
            return plain / factor
        case Llama3Rope():
            return _llama3(plain, scaling)
        case YarnRope():
            return _yarn(plain, theta, scaling)
        case LongRope(factors):
            return 1.0 / (torch.tensor(factors, dtype=torch.float32) * theta**exponents)
    return plain


def amplitude(scaling: Rope | None) -> float:
    """What sines and cosines are multiplied by."""
    return scaling.amplitude if isinstance(scaling, YarnRope | LongRope) else 1.0


def angles(
    positions: torch.Tensor, frequency: torch.Tensor, dtype: torch.dtype, stretch: float = 1.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and signed sines ``[tokens, 1, head_dim]`` as ``rotate`` wants them, times ``stretch``."""
    turns = positions.to(torch.float32).unsqueeze(1) * frequency
    cos, sin = turns.cos() * stretch, turns.sin() * stretch
    cosines, sines = torch.cat((cos, cos), dim=1), torch.cat((-sin, sin), dim=1)
    return cosines.unsqueeze(1).to(dtype), sines.unsqueeze(1).to(dtype)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate ``x [tokens, heads, head_dim]`` in place."""
    swapped = x.roll(x.shape[-1] // 2, -1)
    return x.mul_(cos).addcmul_(swapped, sin)


def _llama3(plain: torch.Tensor, scaling: Llama3Rope) -> torch.Tensor:
    """Slow pairs turn ``factor`` times slower, fast ones stay, those between are blended (as Llama 3.1 defines it)."""
    wavelength = 2 * math.pi / plain
    turns = scaling.original_max_position_embeddings / wavelength
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    blend = ((turns - low) / (high - low)).clamp(0, 1)
    return (1 - blend) * plain / scaling.factor + blend * plain


def _yarn(plain: torch.Tensor, theta: float, scaling: YarnRope) -> torch.Tensor:
    """As Llama 3's, but blended over the pairs' numbers, not over their turns (Peng et al. 2023)."""
    size, original = 2 * len(plain), scaling.original_max_position_embeddings

    def pair_of(turns: float) -> float:
        return size * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = pair_of(scaling.fast), pair_of(scaling.slow)
    if scaling.whole:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, size - 1)
    width = (high - low) or 0.001
    slowed = ((torch.arange(len(plain), dtype=torch.float32) - low) / width).clamp(0, 1)
    kept = 1 - slowed
    return plain / scaling.factor * (1 - kept) + plain * kept
