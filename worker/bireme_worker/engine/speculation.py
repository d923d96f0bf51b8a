"""Guessing the next tokens of a sequence by looking back in its own text (prompt lookup), and when not to.

The last few tokens are looked for further up; what followed them there is drafted. A draft is verified by one forward
pass over all its positions and taken as far as it equals what is drawn there: noise is a function of seed and position,
so the output is the one without drafts. Where drafts fail, ever more tokens are drawn before the next attempt.
"""

from dataclasses import dataclass, field
from typing import Final

ID_BYTES: Final = 4
SIZES: Final = (4, 2)
"""Tokens that must be equal, the most telling first."""
LOOK_BACK: Final = 4096
"""Tokens of a long prompt that are looked through."""
LONGEST_PAUSE: Final = 64


@dataclass(slots=True)
class Speculation:
    """Of one sequence. ``most``: tokens of a draft."""

    most: int
    _followed_at: dict[bytes, int] = field(default_factory=dict)
    _learned: int = 0
    _pause: int = 0
    _next_try: int = 0

    def draft(self, tokens: bytearray, most: int) -> bytes:
        """Guess at most ``most`` tokens after ``tokens``."""
        length = len(tokens) // ID_BYTES
        most = min(most, self.most)
        if most < 1 or length < self._next_try:
            return b""
        self._learn(tokens, length)
        for size in SIZES:
            place = self._followed_at.get(bytes(tokens[-size * ID_BYTES :]))
            if place is not None:
                return _repeat(bytes(tokens[place * ID_BYTES :]), most * ID_BYTES)
        return b""

    def judge(self, accepted: int, length: int) -> None:
        """So many tokens of the last draft were right; the text now has ``length`` tokens."""
        self._pause = 0 if accepted else min(2 * self._pause + 1, LONGEST_PAUSE)
        self._next_try = length + self._pause

    def _learn(self, tokens: bytearray, length: int) -> None:
        for end in range(max(self._learned, length - LOOK_BACK, 1), length):
            for size in SIZES:
                if end >= size:
                    self._followed_at[bytes(tokens[(end - size) * ID_BYTES : end * ID_BYTES])] = end
        self._learned = length


def _repeat(pattern: bytes, size: int) -> bytes:
    """``pattern``, and again from its start if it is short: a text that repeats itself goes on doing so."""
    return (pattern * -(-size // len(pattern)))[:size]
