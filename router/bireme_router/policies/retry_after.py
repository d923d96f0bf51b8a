"""The Retry-After of every refusal, in whole seconds: what queue or groups promise, never zero, never absurd."""

import math
from collections.abc import Iterable
from typing import Final

UNKNOWN_S: Final = 5
"""Where neither a group nor the queue says when there will be room."""
LONGEST_S: Final = 60


def retry_after_s(promised: Iterable[float], queue_s: float | None = None) -> int:
    """Seconds after which a new try may succeed.

    ``promised`` are the groups' own figures (zeros ignored), ``queue_s`` is how long the queue takes to be served.
    """
    known = [seconds for seconds in promised if seconds > 0]
    if queue_s is not None:
        known.append(queue_s)
    return min(max(math.ceil(min(known)), 1), LONGEST_S) if known else UNKNOWN_S
