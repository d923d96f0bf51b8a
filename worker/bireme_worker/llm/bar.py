"""One line on stderr that says how far a batch is."""

import sys
import time
from typing import Final

_EVERY_S: Final = 0.2


class Bar:
    """``shown``: write it; ``total``: choices."""

    def __init__(self, total: int, *, shown: bool) -> None:
        self._total = total
        self._shown = shown
        self._began = self._told = time.monotonic()
        self._ended = self._tokens = 0

    def add(self, tokens: int, ended: int) -> None:
        """So many more tokens came, and so many choices ended."""
        self._tokens += tokens
        self._ended += ended
        now = time.monotonic()
        if self._shown and now - self._told >= _EVERY_S:
            self._told = now
            self._write("")

    def close(self) -> None:
        """The batch is over."""
        if self._shown:
            self._write("\n")

    def _write(self, end: str) -> None:
        rate = self._tokens / max(time.monotonic() - self._began, 1e-9)
        line = f"\r{self._ended}/{self._total} done, {self._tokens} tokens, {rate:.1f} tokens/s"
        sys.stderr.write(line + end)
        sys.stderr.flush()
