"""The Retry-After of every refusal, in whole seconds: as short as a group promises, never zero, never absurd."""

import math
from collections.abc import Iterable
from typing import Final

UNKNOWN_S: Final = 5
"""Where no group says when it will be back."""
LONGEST_S: Final = 60


def retry_after_s(promised: Iterable[float]) -> int:
    """Seconds after which a new try may succeed; ``promised`` are the groups' own figures, zeros ignored."""
    known = [seconds for seconds in promised if seconds > 0]
    return min(math.ceil(min(known)), LONGEST_S) if known else UNKNOWN_S
