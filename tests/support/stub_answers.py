"""What a stub leader answers: a pure function of the request, with every trait of the journal that a router must bear.

Ids come from a hash of (seed, choice, position), so every stub draws alike, as real groups do. Some ids hold their text
back until the next one, some are multi-byte characters, a choice ends at an end id or at `max_tokens`.
"""

import hashlib
from collections.abc import Iterator
from itertools import zip_longest
from typing import Any

import msgspec

from bireme.wire.journal import Emitted, Extension, Opened, journal_line

PIECES = [" sea", " oar", "é", " 船", " stern", "\n", ' "row"', "👋", " bow", ":", " data: x", " mast", "ö"]
HOLDER = 4
END = 12
REVISION = "rev-1"
CACHED = 2
"""Prompt tokens that every stub says it had in its cache."""


def draw(seed: int, choice: int, position: int) -> int:
    """The id at this place of this choice."""
    digest = hashlib.blake2b(f"{seed}/{choice}/{position}".encode(), digest_size=2).digest()
    drawn = int.from_bytes(digest, "big") % len(PIECES)
    return 1 if drawn == END and position < 3 else drawn


def released(ids: list[int]) -> str:
    """The text that a prefix of ids lets out: what the last one holds back is not in it."""
    shown = ids[:-1] if ids and ids[-1] == HOLDER else ids
    return "".join(PIECES[token] for token in shown if token != END)


class Answer:
    """One answer to a request body as the router sends it (or as a client does, for the plain form)."""

    def __init__(
        self, path: str, body: dict[str, Any], revision: str = REVISION, cached_tokens: int | None = None
    ) -> None:
        self._cached = cached_tokens
        self._chat = path.endswith("/chat/completions")
        self._body = body
        self._revision = revision
        extension = body.get("bireme")
        given = msgspec.convert(extension, Extension) if extension else Extension("plain", 1, 7)
        self._extension = given
        self._seed = body.get("seed", given.seed)
        self._limit = body.get("max_tokens", 8)
        self._usage = bool((body.get("stream_options") or {}).get("include_usage"))
        resume = given.resume
        self.prompt = [1, 2, 3, 70_000] if resume is None else resume.prompt_token_ids
        self._resumed = {} if resume is None else {choice.index: choice for choice in resume.choices}
        self._is_resume = resume is not None

    def lines(self) -> list[bytes]:
        """Every line of the journalled stream, with its ending."""
        return b"".join(self._parts()).splitlines(keepends=True)

    def plain(self) -> bytes:
        """The same stream for a client without a token."""
        return b"".join(part for part in self._parts() if not part.startswith(b": bireme"))

    def whole(self) -> bytes:
        """The same answer without stream."""
        choices = [self._whole_choice(index) for index in range(self._body.get("n", 1))]
        kind = "chat.completion" if self._chat else "text_completion"
        return msgspec.json.encode({**self._head(kind), "choices": choices, "usage": self._usage_object()})

    def ids(self, choice: int) -> list[int]:
        """All ids of a choice."""
        ids: list[int] = []
        while len(ids) < self._limit and (not ids or ids[-1] != END):
            ids.append(draw(self._seed, choice, len(ids)))
        return ids

    def _parts(self) -> Iterator[bytes]:
        yield journal_line(Opened(1, self.prompt, self._revision, self._cached))
        for choice in range(self._body.get("n", 1)) if self._chat else ():
            if self._is_resume and (choice == 0 or choice in self._resumed):
                continue
            if choice:
                yield journal_line(Emitted(choice, []))
            yield self._event(choice, {"delta": {"role": "assistant", "content": ""}})
        yield from self._tokens()
        if self._usage:
            yield self._chunk([], self._usage_object())
        yield b"data: [DONE]\n\n"

    def _tokens(self) -> Iterator[bytes]:
        """Choices take turns by position, as in one batch, so that the order is the same after a resume."""
        choices = [self._choice(index) for index in range(self._body.get("n", 1))]
        for turn in zip_longest(*choices, fillvalue=[]):
            for parts in turn:
                yield from parts

    def _choice(self, choice: int) -> Iterator[list[bytes]]:
        """What each position sends; nothing for those that were delivered before."""
        ids = self.ids(choice)
        resumed = self._resumed.get(choice)
        if resumed is not None and resumed.finish_reason:
            return
        delivered = 0 if resumed is None else len(resumed.output_token_ids)
        if resumed is not None:
            assert resumed.output_token_ids == ids[:delivered], "the router sent other ids than were drawn"
        yield from [[]] * delivered
        for position in range(delivered, len(ids)):
            before, after = released(ids[:position]), released(ids[: position + 1])
            text = after[len(before) :]
            if ids[position] == END:
                break
            line = journal_line(Emitted(choice, [ids[position]]))
            yield [line, self._event(choice, self._text(text, position))] if text else [line]
        finish = "stop" if ids[-1] == END else "length"
        last = [END] if finish == "stop" and delivered < len(ids) else []
        yield [journal_line(Emitted(choice, last, finish)), self._event(choice, self._text(""), finish)]

    def _text(self, text: str, position: int = -1) -> dict[str, Any]:
        scores = self._logprobs(text, position) if position >= 0 and self._body.get("logprobs") else None
        inner: dict[str, Any] = {"text": text}
        if self._chat:
            inner = {"delta": {"content": text}} if text else {"delta": {}}
        return {**inner, "logprobs": scores}

    def _logprobs(self, text: str, position: int) -> dict[str, Any]:
        if self._chat:
            return {"content": [{"token": text, "logprob": -0.5, "bytes": list(text.encode())}], "refusal": None}
        return {"tokens": [text], "token_logprobs": [-0.5], "text_offset": [position], "top_logprobs": [{text: -0.5}]}

    def _event(self, choice: int, parts: dict[str, Any], finish: str | None = None) -> bytes:
        return self._chunk([{"index": choice, "logprobs": None, **parts, "finish_reason": finish}])

    def _chunk(self, choices: list[Any], usage: Any = None) -> bytes:
        kind = "chat.completion.chunk" if self._chat else "text_completion"
        chunk = {**self._head(kind), "choices": choices, **({"usage": usage} if self._usage else {})}
        return b"data: " + msgspec.json.encode(chunk) + b"\n\n"

    def _head(self, kind: str) -> dict[str, Any]:
        prefix = "chatcmpl" if self._chat else "cmpl"
        name = f"{prefix}-{self._extension.request_id}"
        return {"id": name, "object": kind, "created": self._extension.created, "model": "m", "system_fingerprint": "f"}

    def _usage_object(self) -> dict[str, Any]:
        output = sum(len(self.ids(choice)) for choice in range(self._body.get("n", 1)))
        prompt = len(self.prompt)
        counts = {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}
        return {**counts, "prompt_tokens_details": {"cached_tokens": CACHED}}

    def _whole_choice(self, choice: int) -> dict[str, Any]:
        ids = self.ids(choice)
        text = released(ids)
        finish = "stop" if ids[-1] == END else "length"
        scores = None
        if self._body.get("logprobs"):
            parts = [self._one(ids, position) for position in range(len(ids)) if self._one(ids, position)]
            scores = parts[0]
            for part in parts[1:]:
                scores = {name: scores[name] + part[name] if part[name] else scores[name] for name in part}
        inner = {"message": {"role": "assistant", "content": text, "refusal": None}} if self._chat else {"text": text}
        return {"index": choice, **inner, "logprobs": scores, "finish_reason": finish}

    def _one(self, ids: list[int], position: int) -> dict[str, Any]:
        text = released(ids[: position + 1])[len(released(ids[:position])) :]
        return self._logprobs(text, position) if text else {}
