"""The text of one output: detokenizer and stop strings in a row, one token at a time.

A resumed request replays the ids that were delivered and has exactly the state of the one that broke off, down to the
token at which a stop string was complete.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bireme_worker.text.detokenizer import NONE, Detokenizer
from bireme_worker.text.stop_strings import StopStrings
from bireme_worker.text.token_bytes import TokenBytes


@dataclass(frozen=True, slots=True)
class Released:
    """``text`` may be sent now; ``used`` of the pushed ids belong to the output (fewer only when a stop was found)."""

    text: str
    used: int
    stopped_by: str | None


class OutputText:
    """Released text of one choice, a pure function of the ids so far."""

    def __init__(
        self,
        tokens: TokenBytes,
        stops: Sequence[str] = (),
        *,
        skip_special: bool = True,
        at_start: bool = True,
        keep: frozenset[int] = NONE,
    ) -> None:
        """``keep``: special tokens that are written out all the same."""
        self._detokenizer = Detokenizer(tokens, skip_special=skip_special, at_start=at_start, keep=keep)
        self._stops = StopStrings(stops)

    def push(self, ids: Iterable[int]) -> Released:
        """Take ids until a stop string is complete; the token that completes it still counts."""
        parts: list[str] = []
        used = 0
        for token in ids:
            if self._stops.matched is not None:
                break
            parts.append(self._stops.push(self._detokenizer.push([token])))
            used += 1
        return Released("".join(parts), used, self._stops.matched)

    def finish(self) -> Released:
        """Release what was held back, when the output ended for another reason than a stop string."""
        text = self._stops.push(self._detokenizer.flush())
        return Released(text + self._stops.flush(), 0, self._stops.matched)
