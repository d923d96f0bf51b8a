"""One choice of a request as a pure function of its ids: released text, log probabilities, and where it ends.

It ends at a stop id, at a complete stop string, or at the last allowed token, whichever comes first, and this is
decided here from the ids alone. So a resumed stream replays the delivered ids in silence and stands exactly where the
broken one stood, whatever the frames were that brought them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from bireme.wire.plan import Logprobs
from bireme_worker.http.generation import Generation
from bireme_worker.text.answer_parts import Part, ToolFormat
from bireme_worker.text.detokenizer import Detokenizer
from bireme_worker.text.tokenizer import TextModel


@dataclass(frozen=True, slots=True)
class Scored:
    """One token with its log probabilities, which a text's first token has not; ``offset``: characters before it."""

    token: int
    offset: int
    logprobs: Logprobs | None

    def cut(self, most: int) -> "Scored":
        """The same with at most so many of the likeliest."""
        if self.logprobs is None or len(self.logprobs.top) <= most:
            return self
        return Scored(self.token, self.offset, Logprobs(self.logprobs.chosen, self.logprobs.top[:most]))


@dataclass(frozen=True, slots=True)
class Piece:
    """What some ids added to a choice. ``finish``: "" while it goes on, else OpenAI's finish reason.

    ``parts``: the text taken apart, where the request asked for tools or the model thinks.
    ``prompt``: the scored prompt, with the first ids.
    """

    ids: list[int]
    text: str
    scored: list[Scored]
    finish: str
    parts: list[Part] = field(default_factory=list)
    prompt: list[Scored] = field(default_factory=list)

    def then(self, other: "Piece") -> "Piece":
        """Both, one after the other."""
        parts = [*self.parts, *other.parts]
        scored, prompt = self.scored + other.scored, self.prompt + other.prompt
        return Piece(self.ids + other.ids, self.text + other.text, scored, other.finish, parts, prompt)


class Choice:
    """The text state of one choice. ``at_start``: the output is a text of its own, not the rest of a prompt."""

    def __init__(self, index: int, generation: Generation, text: TextModel, *, at_start: bool) -> None:
        self.index = index
        self.count = 0
        self.finish = ""
        self._stop_ids = frozenset(generation.sampling.stop_ids)
        self._min_tokens = generation.sampling.min_tokens
        self._max_tokens = generation.room_of(index)
        self._form = generation.form
        self._parts = generation.form.parts()
        self._constraint = generation.form.constraint(self._stop_ids)
        self._output = text.output(generation.stops, at_start=at_start, keep=generation.form.keep)
        self._offset = 0
        # Offsets count characters that are still held back, which the output above does not tell.
        self._all_text = Detokenizer(text.tokens, at_start=at_start) if generation.wants_logprobs else None
        self._prompt = generation.prompt_of(index)
        self._echo = generation.echo_of(index)
        self._echoes = bool(generation.echoes)
        self._wanted = generation.logprobs
        self._prompt_wanted = generation.prompt_logprobs
        self._tokens = text.tokens
        self.scored_prompt: list[Logprobs] = []
        self._offset = len(self._echo)

    @property
    def bound(self) -> bool:
        """Whether only some ids may be drawn."""
        return self._constraint is not None

    def mask(self) -> bytes | None:
        """The ids that may be drawn next; None when nothing can follow, and the choice must end."""
        assert self._constraint is not None
        return self._constraint.mask(may_end=self.count >= self._min_tokens)

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
        return self._piece(taken, "".join(texts), scored)

    def end(self, finish: str) -> Piece:
        """End the choice for a reason that its ids don't tell."""
        return self._piece([], self._end(finish), [])

    def end_of_form(self) -> Piece:
        """End it because no id may follow: whole if it fits its form as it is, else cut short."""
        assert self._constraint is not None
        return self.end("stop" if self._constraint.may_stop else "length")

    def _piece(self, ids: list[int], text: str, scored: list[Scored]) -> Piece:
        prompt: list[Scored] = []
        if ids or text or self.finish:
            text, self._echo = self._echo + text, ""
            if self.scored_prompt:
                told = self._told_prompt()  # with as many of the likeliest as the greedier of the two fields asked for
                if self._echoes and self._wanted >= 0:
                    scored = [one.cut(self._wanted) for one in told] + scored
                prompt = [one.cut(self._prompt_wanted) for one in told] if self._prompt_wanted >= 0 else []
        if self._parts is None:
            return Piece(ids, text, scored, self.finish, [], prompt)
        parts = self._parts.push(text) + (self._parts.finish() if self.finish else [])
        if self.finish == "stop" and self._parts.calls and self._form.tools is not ToolFormat.NAMED:
            self.finish = "tool_calls"
        return Piece(ids, text, scored, self.finish, parts, prompt)

    def _told_prompt(self) -> list[Scored]:
        scores, self.scored_prompt = self.scored_prompt, []
        told, offset, text = list[Scored](), 0, Detokenizer(self._tokens)
        for token, logprobs in zip(self._prompt, (None, *scores), strict=False):
            told.append(Scored(token, offset, logprobs))
            offset += len(text.push((token,)))
        return told

    def _push_one(self, token: int) -> str:
        released = self._output.push((token,))
        if self._constraint is not None:
            self._constraint.push(token)
        if released.stopped_by is not None:
            self.finish = "stop"
        elif self._constraint is not None and self._constraint.complete:
            return released.text + self._end("stop")
        elif self.count >= self._max_tokens:
            return released.text + self._end("length")
        return released.text

    def _end(self, finish: str) -> str:
        released = self._output.finish()
        self.finish = "stop" if released.stopped_by is not None else finish
        return released.text
