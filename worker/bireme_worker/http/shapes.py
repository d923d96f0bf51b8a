"""What chat and completions write differently: the events of a stream and the object of a whole answer.

Everything in an event that does not change during a stream is encoded once; a token costs one string encoding and one
concatenation.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from bireme.names import Header
from bireme_worker.http.choice import Piece, Scored
from bireme_worker.http.generation import Generation

encode = msgspec.json.encode


class Shape(Protocol):
    """How one route writes one answer. Every method that returns bytes returns whole server-sent events."""

    def role(self, choice: int) -> bytes:
        """The event that opens a choice, or nothing."""
        ...

    def content(self, choice: int, piece: Piece) -> bytes:
        """The event for a piece, or nothing when it has neither text nor log probabilities to send."""
        ...

    def finish(self, choice: int, reason: str) -> bytes:
        """The event that ends a choice."""
        ...

    def usage(self, usage: Mapping[str, Any]) -> bytes:
        """The event with the token counts."""
        ...

    def whole(self, pieces: Sequence[Sequence[Piece]], usage: Mapping[str, Any]) -> bytes:
        """The answer of a request without stream, from all pieces of each choice."""
        ...


ShapeOf = Callable[[str], Shape]
"""Makes the shape once the model revision of the answer is known."""


def response_headers(generation: Generation, model_revision: str) -> dict[str, str]:
    """Headers of every answer."""
    return {Header.REQUEST_ID: generation.request_id, Header.MODEL_REVISION: model_revision}


class Envelope:
    """The part of a response that is alike in all its events."""

    def __init__(self, prefix: str, kind: str, generation: Generation, model: str, model_revision: str) -> None:
        self._fields = {
            "id": f"{prefix}-{generation.request_id}",
            "object": kind,
            "created": generation.created,
            "model": model,
            "system_fingerprint": model_revision or None,
        }
        self._head = b"data: " + encode(self._fields)[:-1] + b',"choices":['
        self._tail = b',"usage":null}\n\n' if generation.include_usage else b"}\n\n"
        self._prompt = {"prompt_token_ids": generation.prompt} if generation.return_ids else {}
        resumed = generation.revision is not None
        self._first_tail = b"," + encode(self._prompt)[1:-1] if self._prompt and not resumed else b""

    def event(self, choice: bytes) -> bytes:
        """One event with one choice; the first one also tells the prompt's ids to whoever asked."""
        first, self._first_tail = self._first_tail, b""
        return self._head + choice + b"]" + first + self._tail

    def usage_event(self, usage: Mapping[str, Any]) -> bytes:
        """The event without choices that tells the token counts."""
        return self._head + b'],"usage":' + encode(usage) + b"}\n\n"

    def whole(self, kind: str, choices: Sequence[Mapping[str, Any]], usage: Mapping[str, Any]) -> bytes:
        """The answer without stream."""
        return encode({**self._fields, **self._prompt, "object": kind, "choices": choices, "usage": usage})


def token_ids(pieces: Sequence[Piece], *, wanted: bool) -> dict[str, list[int]]:
    """The field of a choice that tells its ids, or nothing."""
    return {"token_ids": [token for piece in pieces for token in piece.ids]} if wanted else {}


def joined(pieces: Sequence[Piece]) -> tuple[str, list[Scored], str]:
    """Text, log probabilities and finish reason of a whole choice."""
    text = "".join(piece.text for piece in pieces)
    return text, [scored for piece in pieces for scored in piece.scored], pieces[-1].finish
