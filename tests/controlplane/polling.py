"""Wait for what a controller does in its own time: ask again until the answer is there, never longer than a bound."""

import time
from collections.abc import Callable
from typing import TypeVar

Answer = TypeVar("Answer")

_POLL_SECONDS = 0.1


def eventually(ask: Callable[[], Answer | None], *, within: float = 120.0) -> Answer:
    """Return the first true answer of ``ask``, or fail with the last one after ``within`` seconds."""
    deadline = time.monotonic() + within
    while not (answer := ask()):
        assert time.monotonic() < deadline, f"still {answer!r} after {within:.0f} s"
        time.sleep(_POLL_SECONDS)
    return answer
