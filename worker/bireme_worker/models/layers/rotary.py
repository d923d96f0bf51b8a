"""Rotary position embedding, with the frequency scaling of Llama 3.

The angles of a step are computed once and shared by all layers: a table over the whole context would cost more memory
than a small model's share. Halves rotate against each other, the layout of Hugging Face checkpoints.
"""

import math

import torch

from bireme_worker.checkpoints.config import Llama3Rope


def frequencies(head_dim: int, theta: float, scaling: Llama3Rope | None) -> torch.Tensor:
    """Radians per position for each of the ``head_dim / 2`` pairs, float32."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    plain = 1.0 / (theta**exponents)
    return plain if scaling is None else _llama3(plain, scaling)


def angles(positions: torch.Tensor, frequency: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and signed sines ``[tokens, 1, head_dim]`` as ``rotate`` wants them."""
    turns = positions.to(torch.float32).unsqueeze(1) * frequency
    cos, sin = turns.cos(), turns.sin()
    cosines, sines = torch.cat((cos, cos), dim=1), torch.cat((-sin, sin), dim=1)
    return cosines.unsqueeze(1).to(dtype), sines.unsqueeze(1).to(dtype)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate ``x [tokens, heads, head_dim]``; returns a new contiguous tensor."""
    half = x.shape[-1] // 2
    swapped = torch.cat((x[..., half:], x[..., :half]), dim=-1)
    return torch.addcmul(x * cos, swapped, sin)


def _llama3(plain: torch.Tensor, scaling: Llama3Rope) -> torch.Tensor:
    """Slow pairs turn ``factor`` times slower, fast ones stay, those between are blended (as Llama 3.1 defines it)."""
    wavelength = 2 * math.pi / plain
    turns = scaling.original_max_position_embeddings / wavelength
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    blend = ((turns - low) / (high - low)).clamp(0, 1)
    return (1 - blend) * plain / scaling.factor + blend * plain
