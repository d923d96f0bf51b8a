"""Stop strings: the text ends before the first one, and no part of it is ever released.

The end of the text that may be the beginning of a stop string is held back until it is decided. The first stop string
to be complete wins, as if the text came character by character, so the grouping of tokens changes nothing.
"""

from collections.abc import Sequence


class StopStrings:
    """The stop strings of one output; ``matched`` is the one that ended it."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = [stop for stop in stops if stop]
        self._longest = max((len(stop) for stop in self._stops), default=0)
        self._held = ""
        self.matched: str | None = None

    def push(self, text: str) -> str:
        """Return the text that can be released now. After a match nothing more is released."""
        if self.matched is not None:
            return ""
        self._held += text
        found = self._first_complete()
        if found is not None:
            start, self.matched = found
            released, self._held = self._held[:start], ""
            return released
        keep = self._undecided()
        released, self._held = self._held[:keep], self._held[keep:]
        return released

    def flush(self) -> str:
        """Return what was held back, when no more text comes."""
        released, self._held = self._held, ""
        return released

    def _first_complete(self) -> tuple[int, str] | None:
        places = [(self._held.find(stop), stop) for stop in self._stops]
        ends = [(start + len(stop), start, stop) for start, stop in places if start >= 0]
        if not ends:
            return None
        _, start, stop = min(ends)
        return start, stop

    def _undecided(self) -> int:
        """Where the longest suffix begins that is the beginning of a stop string."""
        first = max(len(self._held) - self._longest + 1, 0)
        for start in range(first, len(self._held)):
            suffix = self._held[start:]
            if any(stop.startswith(suffix) for stop in self._stops):
                return start
        return len(self._held)
