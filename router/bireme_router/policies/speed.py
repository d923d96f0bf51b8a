"""How fast a group is, learned from its own answers, because TP, PP and hardware differ between groups.

Amounts and seconds are summed apart, so a long prompt counts for what it is and the fixed cost of a short one does not
pass for slowness. Old samples fade: a window of so many seconds of work is kept. A group that is new, or idle, is taken
for as fast as the fleet until it has shown otherwise.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

PREFILL_GUESS: Final = 2_000.0
"""Tokens per second, while no group has shown anything."""
DECODE_GUESS: Final = 20_000.0
"""Block-tokens per second, likewise."""
WEIGHTS_BLOCKS: Final = 4096.0
"""KV blocks whose reading takes as long as that of the weights (16 GB to 2 MB a block for 8B parameters, give or take).

A step costs that much before it has read any KV; without it a busy group would seem fast for being busy.
"""
STEPS_GUESS: Final = DECODE_GUESS + 20.0 * WEIGHTS_BLOCKS
SAME: Final = 0.15
"""A group within 15 per cent of the fleet's speed is taken for equal: measurements are not truer than that."""
MOST_APART: Final = 8.0
WINDOW_S: Final = 60.0
_PRIOR_S: Final = 5.0


@dataclass(frozen=True)
class Rate:
    """So much ``done`` in so many ``seconds``, old samples faded."""

    done: float = 0.0
    seconds: float = 0.0

    def learned(self, done: float, seconds: float) -> "Rate":
        """The rate after one more sample; samples without time or amount teach nothing."""
        if done <= 0.0 or seconds <= 0.0:
            return self
        room = max(WINDOW_S - seconds, 0.0)
        keep = min(room / self.seconds, 1.0) if self.seconds else 0.0
        return Rate(self.done * keep + done, self.seconds * keep + seconds)

    def per_second(self, usual: float) -> float:
        """The estimate; ``usual`` weighs as much as five seconds of samples."""
        return (self.done + usual * _PRIOR_S) / (self.seconds + _PRIOR_S)


def relative(own: float, fleet: float) -> float:
    """How much faster than the fleet a group is, 1 for about as fast."""
    ratio = min(max(own / fleet, 1.0 / MOST_APART), MOST_APART)
    return 1.0 if 1.0 / (1.0 + SAME) <= ratio <= 1.0 + SAME else ratio


def usual(rates: Iterable[Rate], guess: float) -> float:
    """What the fleet does on average; ``guess`` while it has shown nothing."""
    return sum_of(rates).per_second(guess)


def sum_of(rates: Iterable[Rate]) -> Rate:
    """All samples together."""
    done = seconds = 0.0
    for rate in rates:
        done += rate.done
        seconds += rate.seconds
    return Rate(done, seconds)
