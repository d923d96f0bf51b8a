"""Tells how far `make e2e` is: one line when a step begins, one with its time when it ends."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

_BEGAN = time.monotonic()


def say(line: str) -> None:
    """Print a line of progress with the time since the command began."""
    print(f"[e2e {time.monotonic() - _BEGAN:4.0f} s] {line}", file=sys.stderr, flush=True)


@contextmanager
def step(what: str) -> Iterator[None]:
    """Say that ``what`` begins, and how long it took."""
    say(what)
    began = time.monotonic()
    yield
    say(f"{what}: {time.monotonic() - began:.1f} s")
