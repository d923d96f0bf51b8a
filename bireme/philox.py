"""Philox4x32-10 in plain integers: the noise behind every sampled token.

A counter-based generator has no state: the draw for (seed, output position, token id, choice) is the same whatever
shares the batch, however the prompt was chunked, on whichever rank, after any resume. This module is the reference;
the worker has the same function over tensors. Source: Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3",
SC'11; constants as in the Random123 distribution.
"""

import math
import struct
from typing import Final

_M0: Final = 0xD2511F53
_M1: Final = 0xCD9E8D57
_W0: Final = 0x9E3779B9
_W1: Final = 0xBB67AE85
_MASK: Final = 0xFFFFFFFF
_ROUNDS: Final = 10
_LARGEST: Final = 1 - 2.0**-24
"""The largest float32 under 1: keeps the exponential finite."""

Words = tuple[int, int, int, int]


def philox4x32(counter: Words, key: tuple[int, int]) -> Words:
    """Ten rounds over four 32-bit words; returns four uniform 32-bit words."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        p0, p1 = _M0 * c0, _M1 * c2
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 & _MASK, (p0 >> 32) ^ c3 ^ k1, p0 & _MASK
        k0, k1 = (k0 + _W0) & _MASK, (k1 + _W1) & _MASK
    return c0, c1, c2, c3


def noise_word(seed: int, position: int, token: int, choice: int = 0) -> int:
    """The 32-bit word for one vocabulary entry at one output position.

    One call of the generator serves four neighbouring token ids: counter = (position, token // 4, choice, 0), word
    token % 4, key = the low and high half of the 64-bit ``seed``.
    """
    key = (seed & _MASK, (seed >> 32) & _MASK)
    return philox4x32((position, token // 4, choice, 0), key)[token % 4]


def gumbel(seed: int, position: int, token: int, choice: int = 0) -> float:
    """Standard Gumbel noise: ``−log(E)`` with ``E = −log1p(−v)`` and v uniform in (0, 1) at 32 bits.

    The upper tail, where winners come from, keeps all 32 bits (largest value 22.9). In float32 as the worker does it.
    """
    v = min(_float32(_float32(noise_word(seed, position, token, choice)) * 2.0**-32 + 2.0**-33), _LARGEST)
    return -math.log(-math.log1p(-v))


def _float32(value: float) -> float:
    return float(struct.unpack("f", struct.pack("f", value))[0])
