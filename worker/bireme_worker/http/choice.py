"""One choice of a request as a pure function of its ids: released text, log probabilities, and where it ends.

It ends at a stop id, at a complete stop string, or at the last allowed token, whichever comes first, and this is
decided here from the ids alone. So a resumed stream replays the delivered ids in silence and stands exactly where the
broken one stood, whatever the frames were that brought them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from bireme.wire.plan import Logprobs
from bireme_worker.http.generation import Generation
from bireme_worker.text.detokenizer import Detokenizer
from bireme_worker.text.tokenizer import TextModel


@dataclass(frozen=True, slots=True)
class Scored:
    """One token of the output with its log probabilities; ``offset`` counts characters of the output before it."""

    token: int
    offset: int
    logprobs: Logprobs


@dataclass(frozen=True, slots=True)
class Piece:
    """What some ids added to a choice. ``finish``: "" while it goes on, else OpenAI's finish reason."""

    ids: list[int]
    text: str
    scored: list[Scored]
    finish: str


class Choice:
    """The text state of one choice. ``at_start``: the output is a text of its own, not the rest of a prompt."""

    def __init__(self, index: int, generation: Generation, text: TextModel, *, at_start: bool) -> None:
        self.index = index
        self.count = 0
        self.finish = ""
        self._stop_ids = frozenset(generation.sampling.stop_ids)
        self._max_tokens = generation.max_tokens
        self._output = text.output(generation.stops, at_start=at_start)
        self._offset = 0
        # Offsets count characters that are still held back, which the output above does not tell.
        self._all_text = Detokenizer(text.tokens, at_start=at_start) if generation.wants_logprobs else None

    def push(self, ids: Sequence[int], logprobs: Sequence[Logprobs] = ()) -> Piece:
        """Take ids up to the end of the choice; the ones behind it were never part of it."""
        taken: list[int] = []
        texts: list[str] = []
        scored: list[Scored] = []
        for place, token in enumerate(ids):
            if self.finish:
                break
            taken.append(token)
            self.count += 1
            if token in self._stop_ids:
                texts.append(self._end("stop"))
                break
            if logprobs:
                scored.append(Scored(token, self._offset, logprobs[place]))
            if self._all_text is not None:
                self._offset += len(self._all_text.push((token,)))
            texts.append(self._push_one(token))
        return Piece(taken, "".join(texts), scored, self.finish)

    def end(self, finish: str) -> Piece:
        """End the choice for a reason that its ids don't tell."""
        return Piece([], self._end(finish), [], self.finish)

    def _push_one(self, token: int) -> str:
        released = self._output.push((token,))
        if released.stopped_by is not None:
            self.finish = "stop"
        elif self.count >= self._max_tokens:
            return released.text + self._end("length")
        return released.text

    def _end(self, finish: str) -> str:
        released = self._output.finish()
        self.finish = "stop" if released.stopped_by is not None else finish
        return released.text
