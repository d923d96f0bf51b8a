"""Seeded requests for every engine under test: prompt ids and the output's length. Equal seeds make equal requests.

`uniform` with its defaults is known as uniform256; `conversations` has the log-normal lengths of chats (mean 220 in,
200 out), cut at ``cap``: with 1024 it is sharegpt1000 capped.
"""

import math
import random

Request = tuple[list[int], int]
LEAST, UNUSED = 4, 10
"""The shortest conversation; ids at both ends of a vocabulary that are left out, being special in many."""


def uniform(vocabulary: int, count: int = 256, low: int = 100, high: int = 1024, seed: int = 0) -> list[Request]:
    """Lengths in and out drawn evenly."""
    dice = random.Random(seed)
    return _filled([(dice.randint(low, high), dice.randint(low, high)) for _ in range(count)], vocabulary, seed + 1)


def fixed(vocabulary: int, count: int, given: int, wanted: int, seed: int = 2) -> list[Request]:
    """All of one size."""
    return _filled([(given, wanted)] * count, vocabulary, seed)


def conversations(vocabulary: int, count: int = 1000, cap: int = 1024, seed: int = 3) -> list[Request]:
    """Lengths as people's chats have them."""
    dice = random.Random(seed)
    lengths = [(_log_normal(dice, 220, 1.0, cap), _log_normal(dice, 200, 0.8, cap)) for _ in range(count)]
    return _filled(lengths, vocabulary, seed + 1)


def _log_normal(dice: random.Random, mean: float, spread: float, cap: int) -> int:
    drawn = dice.lognormvariate(math.log(mean) - spread * spread / 2, spread)
    return min(cap, max(LEAST, round(drawn)))


def _filled(lengths: list[tuple[int, int]], vocabulary: int, seed: int) -> list[Request]:
    dice = random.Random(seed)
    return [([dice.randrange(UNUSED, vocabulary - UNUSED) for _ in range(a)], b) for a, b in lengths]
