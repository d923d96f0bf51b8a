"""How long each part of a rank's start took, in one line of its log."""

import os
import time
from pathlib import Path


class Phases:
    """Parts that follow one another."""

    def __init__(self) -> None:
        self._parts: dict[str, float] = {}
        self._begin = self._last = time.monotonic()

    def end(self, name: str) -> None:
        """What was done since the last one ended, or since the beginning, was ``name``."""
        now = time.monotonic()
        self._parts[name] = self._parts.get(name, 0.0) + now - self._last
        self._last = now

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {seconds:.2f}" for name, seconds in self._parts.items())
        return f"loaded in {self._last - self._begin:.2f} s ({parts}), {process_age():.2f} s after its start"


def process_age() -> float:
    """Seconds since this process began."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    started = int(fields[19]) / os.sysconf("SC_CLK_TCK")  # the 22nd field; two are before the name's end
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started
