"""A clock that tells Unix time and never jumps: the wall clock at the start, the monotonic one from then on."""

import time
from collections.abc import Callable

Clock = Callable[[], float]


def steady_clock() -> Clock:
    """Return the clock of one run."""
    offset = time.time() - time.monotonic()
    return lambda: offset + time.monotonic()
