"""Gumbel noise over tensors, word for word equal to ``bireme.philox`` (see there for the formula).

Philox multiplies 32-bit words to 64 bits. In int64 the product wraps, but its bits are the same; masking
after each shift gives the unsigned halves.
"""

from dataclasses import dataclass
from typing import Final

import torch

_M0: Final = 0xD2511F53
_M1: Final = 0xCD9E8D57
_W0: Final = 0x9E3779B9
_W1: Final = 0xBB67AE85
_MASK: Final = 0xFFFFFFFF
_ROUNDS: Final = 10
_LARGEST: Final = 1 - 2.0**-24
_ROWS_AT_A_TIME: Final = 8


@dataclass(frozen=True, slots=True)
class Generators:
    """One generator per row: halves of the seed, output position and choice, int64 ``[rows]`` each."""

    seed_low: torch.Tensor
    seed_high: torch.Tensor
    position: torch.Tensor
    choice: torch.Tensor

    def parts(self) -> "list[Generators]":
        """As few rows at a time on the CPU as a core's cache holds."""
        if self.position.is_cuda or len(self.position) <= _ROWS_AT_A_TIME:
            return [self]
        columns = (self.seed_low, self.seed_high, self.position, self.choice)
        return [Generators(*part) for part in zip(*(torch.split(one, _ROWS_AT_A_TIME) for one in columns), strict=True)]


def noise_words(rows: Generators, start: int, width: int) -> tuple[torch.Tensor, ...]:
    """The 32-bit words of token ids ``start`` to ``start + width`` (multiples of 4).

    Four int64 tensors ``[rows, width / 4]``: word w of block b belongs to token id ``start + 4 b + w``.
    """
    # Values that are equal along a row or a column stay so for the first rounds: broadcasting makes those nearly free.
    c0, c2, c3 = rows.position.unsqueeze(1), rows.choice.unsqueeze(1), torch.zeros_like(rows.choice).unsqueeze(1)
    c1 = torch.arange(start // 4, (start + width) // 4, device=c0.device).unsqueeze(0)
    k0, k1 = rows.seed_low.unsqueeze(1), rows.seed_high.unsqueeze(1)
    for _ in range(_ROUNDS):
        p0, p1 = c0 * _M0, c2 * _M1
        # What stands above 32 bits is cut off once, before it would be multiplied.
        c0 = (p1 >> 32).bitwise_xor_(k0).bitwise_xor(c1).bitwise_and_(_MASK)
        c2 = (p0 >> 32).bitwise_xor_(k1).bitwise_xor(c3).bitwise_and_(_MASK)
        c1, c3 = p1, p0
        k0, k1 = (k0 + _W0) & _MASK, (k1 + _W1) & _MASK
    return c0, c1 & _MASK, c2, c3 & _MASK


def gumbel(rows: Generators, start: int, width: int) -> torch.Tensor:
    """Standard Gumbel noise for token ids ``start`` to ``start + width``, float32 ``[rows, width]``."""
    parts = [_gumbel(part, start, width) for part in rows.parts()]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _gumbel(rows: Generators, start: int, width: int) -> torch.Tensor:
    # To float before the words are interleaved: half the bytes to move.
    noise = torch.stack([_exponential(words) for words in noise_words(rows, start, width)], dim=2)
    return noise.log_().neg_().view(len(noise), width)


def _exponential(words: torch.Tensor) -> torch.Tensor:
    """``−log1p(−v)`` for v uniform in (0, 1)."""
    v = words.to(torch.float32).mul_(2.0**-32).add_(2.0**-33).clamp_(max=_LARGEST)
    # torch's log1p is fourteen times slower than its log. Kahan's way: what 1 − v lost to rounding cancels out.
    rest = 1 - v
    taken = 1 - rest
    return torch.where(taken == 0, v, rest.log_().neg_().mul_(v).div_(taken))
