"""`POST /v1/completions`: the same engine without a chat template."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from aiohttp import web

from bireme_worker.http.answer import Answer
from bireme_worker.http.best_of import BestOf
from bireme_worker.http.body import check, read_object
from bireme_worker.http.choice import Piece
from bireme_worker.http.generation import Generation, Prompts, plan_generation
from bireme_worker.http.logprobs import completion_logprobs, prompt_logprobs
from bireme_worker.http.prompts import encode_text
from bireme_worker.http.schema import CompletionBody
from bireme_worker.http.service import Service, take_caller
from bireme_worker.http.shapes import Envelope, encode, joined, token_ids
from bireme_worker.http.streaming import stream_answer
from bireme_worker.http.texts import TEXTS
from bireme_worker.http.whole import whole_answer

_EVENT: Final = b'{"text":%b,"index":%d,"logprobs":%b,"finish_reason":%b%b}'


async def completions(request: web.Request) -> web.StreamResponse:
    """Continue a text."""
    service = await request.app[TEXTS].ready()
    content = await read_object(request)
    caller = take_caller(request, service.identity.token, content)
    body = check(CompletionBody, content)

    async def encode_prompt() -> Prompts:
        return [
            await encode_text(service.text, one, add_special_tokens=True) if isinstance(one, str) else one
            for one in body.prompt
        ]

    def shape_of(model_revision: str) -> CompletionShape:
        return CompletionShape(service, generation, model_revision)

    generation = await plan_generation(service, caller, body, encode_prompt)
    compares = generation.kept < generation.drawn
    answer = BestOf(service, generation) if compares else Answer(service, generation, at_start=False)
    if body.stream:
        return await stream_answer(request, generation, answer, shape_of)
    return await whole_answer(generation, answer, shape_of)


class CompletionShape:
    """How completions write an answer; see ``shapes.Shape``."""

    def __init__(self, service: Service, generation: Generation, model_revision: str) -> None:
        model = service.identity.model_name
        self._tokens = service.text.tokens
        self._scores = generation.wants_logprobs
        self._ids = generation.return_ids
        self._envelope = Envelope("cmpl", "text_completion", generation, model, model_revision)

    def role(self, choice: int) -> bytes:  # noqa: ARG002 (chat needs it)
        return b""

    def content(self, choice: int, piece: Piece) -> bytes:
        ids = encode(token_ids([piece], wanted=self._ids) | prompt_logprobs(self._tokens, piece.prompt))[1:-1]
        if not piece.text and not piece.scored and not piece.prompt and not (ids and piece.ids):
            return b""
        scored = self._scores and piece.scored
        logprobs = encode(completion_logprobs(self._tokens, piece.scored)) if scored else b"null"
        return self._envelope.event(_EVENT % (encode(piece.text), choice, logprobs, b"null", ids and b"," + ids))

    def finish(self, choice: int, reason: str) -> bytes:
        return self._envelope.event(_EVENT % (b'""', choice, b"null", encode(reason), b""))

    def usage(self, usage: Mapping[str, Any]) -> bytes:
        return self._envelope.usage_event(usage)

    def whole(self, pieces: Sequence[Sequence[Piece]], usage: Mapping[str, Any]) -> bytes:
        choices = [self._choice(index, own) for index, own in enumerate(pieces)]
        return self._envelope.whole("text_completion", choices, usage)

    def _choice(self, index: int, pieces: Sequence[Piece]) -> dict[str, Any]:
        text, scored, finish = joined(pieces)
        return {
            "text": text,
            "index": index,
            "logprobs": completion_logprobs(self._tokens, scored) if self._scores else None,
            "finish_reason": finish,
            **token_ids(pieces, wanted=self._ids),
            **prompt_logprobs(self._tokens, [one for piece in pieces for one in piece.prompt]),
        }
