"""The choices of one call, from submission to their ends, over any number of coordinators."""

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

import msgspec

from bireme.names import Admission
from bireme.wire.plan import Logprobs, Sampling, pack_ids, unpack_ids
from bireme.wire.requests import Allow, Cancel, Frame, Refused, Serving, Submit, Tokens
from bireme_worker.llm.bar import Bar
from bireme_worker.llm.errors import EngineFailed, InvalidInput
from bireme_worker.llm.line import Line, LineLost
from bireme_worker.llm.outputs import CompletionOutput
from bireme_worker.text.grammar import Constraint
from bireme_worker.text.output_text import OutputText

RECOVER_S: Final = 120.0
_keys: Iterator[int] = itertools.count(1)


@dataclass
class Choice:
    """One choice of one prompt, bound by ``constraint``. ``finish`` is "" until it has ended."""

    prompt: list[int]
    sampling: Sampling
    max_tokens: int
    text: OutputText
    speculate: bool = True
    adapter: str = ""
    constraint: Constraint | None = None
    ids: list[int] = field(default_factory=list)
    parts: list[str] = field(default_factory=list)
    logprobs: list[dict[int, float]] = field(default_factory=list)
    scored: list[dict[int, float]] = field(default_factory=list)
    cached: int = 0
    finish: str = ""
    stop_reason: str | int | None = None

    def submission(self, key: int) -> Submit:
        """What is asked of a coordinator that knows nothing of it yet."""
        sampling = self.sampling
        if self.ids:
            sampling = msgspec.structs.replace(sampling, prompt_logprobs=-1)
        else:
            self.scored.clear()
        return Submit(
            key=key,
            request_id=f"llm-{key}",
            prompt=pack_ids(self.prompt),
            sampling=sampling,
            max_tokens=self.max_tokens,
            outputs=pack_ids(self.ids),
            speculate=self.speculate,
            adapter=self.adapter,
            mask=self.mask() or b"",
        )

    def mask(self) -> bytes | None:
        """What may be drawn next. None where it is free, and where nothing may follow: then it has ended."""
        if self.constraint is None or self.finish:
            return None
        mask = self.constraint.mask(may_end=len(self.ids) >= self.sampling.min_tokens)
        if mask is None:
            self._end("stop" if self.constraint.may_stop else "length", None)
        return mask

    def take(self, tokens: Tokens) -> None:
        """Add what a step brought."""
        self.cached = self.cached or tokens.cached
        place = 1 + len(self.scored)
        self.scored += map(_by_id, self.prompt[place : place + len(tokens.prompt)], tokens.prompt)
        for place, token in enumerate(unpack_ids(tokens.ids)):
            self.ids.append(token)
            if tokens.logprobs:
                self.logprobs.append(_by_id(token, tokens.logprobs[place]))
            if token in self.sampling.stop_ids and len(self.ids) > self.sampling.min_tokens:
                return self._end("stop", token)
            released = self.text.push((token,))
            self.parts.append(released.text)
            if released.stopped_by is not None:
                return self._end("stop", released.stopped_by)
            if self.constraint is not None:
                self.constraint.push(token)
                if self.constraint.complete:
                    return self._end("stop", None)
        if tokens.finish:
            self._end(tokens.finish, None)
        return None

    def output(self) -> CompletionOutput:
        """The ended choice as the user sees it."""
        logprobs = tuple(self.logprobs) if self.sampling.logprobs >= 0 else None
        text, index = "".join(self.parts), self.sampling.choice
        return CompletionOutput(index, text, tuple(self.ids), self.finish, self.stop_reason, logprobs)

    def _end(self, finish: str, reason: str | int | None) -> None:
        released = self.text.finish()
        self.parts.append(released.text)
        if released.stopped_by is not None:
            finish, reason = "stop", released.stopped_by
        self.finish, self.stop_reason = finish, reason


class Batch:
    """The choices of one call. ``parked`` ones are sent as soon as the group serves (again)."""

    def __init__(self, line: Line, choices: Iterable[Choice], bar: Bar) -> None:
        self._line = line
        self._bar = bar
        self._parked = list(choices)
        self._under_way: dict[int, Choice] = {}

    def run(self) -> None:
        """Compute them to their ends.

        Raises:
            InvalidInput: one of them can't be served; the others are given up.
            EngineFailed: the engine ended.
        """
        try:
            self._submit()
            while self._under_way or self._parked:
                try:
                    self._take(self._line.receive())
                except LineLost:
                    self._line.open(RECOVER_S)
                    self._parked += self._under_way.values()
                    self._under_way.clear()
                    self._submit()
        finally:
            for key in self._under_way:
                self._line.send(Cancel(key))

    def _submit(self) -> None:
        for choice in self._parked:
            submission = choice.submission(next(_keys))
            if choice.finish:  # nothing at all may follow
                self._bar.add(0, 1)
                continue
            self._under_way[submission.key] = choice
            self._line.send(submission)
        self._parked = []

    def _take(self, message: object) -> None:
        match message:
            case Frame():
                for tokens in message.tokens:
                    self._take_tokens(tokens)
            case Refused() if message.key in self._under_way:
                if message.code != Admission.NOT_SERVING:
                    raise InvalidInput(message.message)
                self._parked.append(self._under_way.pop(message.key))
            case Serving(serving=True):
                self._submit()
            case _:
                return

    def _take_tokens(self, tokens: Tokens) -> None:
        choice = self._under_way.get(tokens.key)
        if choice is None:
            return
        if tokens.finish == "error":
            raise EngineFailed(tokens.message)
        before = len(choice.ids)
        choice.take(tokens)
        mask = choice.mask()
        self._bar.add(len(choice.ids) - before, bool(choice.finish))
        if choice.finish:
            del self._under_way[tokens.key]
            if not tokens.finish:
                self._line.send(Cancel(tokens.key))
        elif mask is not None and len(choice.ids) > before:
            self._line.send(Allow(tokens.key, len(choice.ids), mask))


def _by_id(token: int, logprobs: Logprobs) -> dict[int, float]:
    return {token: logprobs.chosen, **dict(logprobs.top)}
