"""`POST /v1/chat/completions`."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from aiohttp import web

from bireme_worker.http.answer import Answer
from bireme_worker.http.body import check, read_object
from bireme_worker.http.chat_parts import delta_of, message_of
from bireme_worker.http.choice import Piece
from bireme_worker.http.generation import Generation, Prompts, plan_generation
from bireme_worker.http.logprobs import chat_logprobs, prompt_logprobs
from bireme_worker.http.prompts import encode_chat
from bireme_worker.http.schema import ChatBody
from bireme_worker.http.service import Service, take_caller
from bireme_worker.http.shapes import Envelope, encode, joined, token_ids
from bireme_worker.http.streaming import stream_answer
from bireme_worker.http.texts import TEXTS
from bireme_worker.http.whole import whole_answer

_ROLE: Final = b'{"index":%d,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}'
_CONTENT: Final = b'{"index":%d,"delta":{"content":%b},"logprobs":%b,"finish_reason":null%b}'
_DELTA: Final = b'{"index":%d,"delta":%b,"logprobs":%b,"finish_reason":null%b}'
_FINISH: Final = b'{"index":%d,"delta":{},"logprobs":null,"finish_reason":%b}'


async def chat(request: web.Request) -> web.StreamResponse:
    """Answer a chat."""
    service = await request.app[TEXTS].ready()
    content = await read_object(request)
    caller = take_caller(request, service.identity.token, content)
    body = check(ChatBody, content)

    async def encode_prompt() -> Prompts:
        tools = body.tools if body.tool_choice != "none" else ()
        return [await encode_chat(service.text, body.messages, tools, body.chat_template_kwargs)]

    generation = await plan_generation(service, caller, body, encode_prompt)
    answer = Answer(service, generation, at_start=True)

    def shape_of(model_revision: str) -> ChatShape:
        return ChatShape(service, generation, model_revision)

    if body.stream:
        return await stream_answer(request, generation, answer, shape_of)
    return await whole_answer(generation, answer, shape_of)


class ChatShape:
    """How chat writes an answer; see ``shapes.Shape``."""

    def __init__(self, service: Service, generation: Generation, model_revision: str) -> None:
        model = service.identity.model_name
        self._tokens = service.text.tokens
        self._scores = generation.wants_logprobs
        self._ids = generation.return_ids
        self._parted = generation.form.parts() is not None
        self._request_id = generation.request_id
        self._envelope = Envelope("chatcmpl", "chat.completion.chunk", generation, model, model_revision)

    def role(self, choice: int) -> bytes:
        return self._envelope.event(_ROLE % choice)

    def content(self, choice: int, piece: Piece) -> bytes:
        ids = encode(token_ids([piece], wanted=self._ids) | prompt_logprobs(self._tokens, piece.prompt))[1:-1]
        shown = piece.parts if self._parted else piece.text
        if not shown and not piece.scored and not piece.prompt and not (ids and piece.ids):
            return b""
        scored = self._scores and piece.scored
        logprobs = encode(chat_logprobs(self._tokens, piece.scored)) if scored else b"null"
        if self._parted:
            delta = encode(delta_of(piece.parts, f"{self._request_id}-{choice}"))
            return self._envelope.event(_DELTA % (choice, delta, logprobs, ids and b"," + ids))
        return self._envelope.event(_CONTENT % (choice, encode(piece.text), logprobs, ids and b"," + ids))

    def finish(self, choice: int, reason: str) -> bytes:
        return self._envelope.event(_FINISH % (choice, encode(reason)))

    def usage(self, usage: Mapping[str, Any]) -> bytes:
        return self._envelope.usage_event(usage)

    def whole(self, pieces: Sequence[Sequence[Piece]], usage: Mapping[str, Any]) -> bytes:
        choices = [self._choice(index, own) for index, own in enumerate(pieces)]
        return self._envelope.whole("chat.completion", choices, usage)

    def _choice(self, index: int, pieces: Sequence[Piece]) -> dict[str, Any]:
        text, scored, finish = joined(pieces)
        return {
            "index": index,
            "message": {"role": "assistant", "content": text, "refusal": None} | self._parted_message(index, pieces),
            "logprobs": chat_logprobs(self._tokens, scored) if self._scores else None,
            "finish_reason": finish,
            **token_ids(pieces, wanted=self._ids),
            **prompt_logprobs(self._tokens, [one for piece in pieces for one in piece.prompt]),
        }

    def _parted_message(self, index: int, pieces: Sequence[Piece]) -> dict[str, Any]:
        if not self._parted:
            return {}
        return message_of([part for piece in pieces for part in piece.parts], f"{self._request_id}-{index}")
