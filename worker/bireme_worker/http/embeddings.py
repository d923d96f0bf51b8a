"""`POST /v1/embeddings`: vectors of texts, in OpenAI's shape.

Each input is a request of its own for the engine, which computes many in one step; no more are given to it at a time
than it runs, so that a long list leaves room for others. A vector has length 1, also when it is cut to `dimensions`.
"""

import base64
import math
from array import array
from typing import Annotated, Any, Final, Literal

import msgspec
from aiohttp import web
from pydantic import Field

from bireme.wire.plan import Sampling
from bireme.wire.requests import Refused, Tokens
from bireme_worker.http.bodies import Body, checked
from bireme_worker.http.body import check, read_object
from bireme_worker.http.coordinator_link import RETRY_AFTER_S, Call, Event, Lost
from bireme_worker.http.errors import ApiError, EngineFailed, HandedOver, InvalidRequest, refusal
from bireme_worker.http.prompts import encode_text
from bireme_worker.http.remedies import wrong
from bireme_worker.http.schema import is_id
from bireme_worker.http.service import Caller, Service, take_caller
from bireme_worker.http.texts import TEXTS

MAX_INPUTS: Final = 2048
Input = str | list[int]


def _inputs(value: object) -> list[Input]:
    """A string, a list of strings, token ids, or a list of such lists."""
    whole = isinstance(value, str) or (isinstance(value, list) and bool(value) and all(map(is_id, value)))
    inputs = [value] if whole else value
    if not isinstance(inputs, list) or not all(isinstance(one, str) or _ids(one) for one in inputs):
        raise wrong("must be a string, a list of strings, token ids, or a list of lists of token ids")
    if not 1 <= len(inputs) <= MAX_INPUTS:
        raise wrong(f"has {len(inputs)} inputs: send 1 to {MAX_INPUTS}")
    if not all(inputs):
        raise wrong(f"has an empty input at place {[bool(one) for one in inputs].index(False)}: leave it out")
    return inputs


def _ids(value: object) -> bool:
    return isinstance(value, list) and all(map(is_id, value))


class EmbeddingsBody(Body):
    """`POST /v1/embeddings`."""

    model: str = Field(max_length=512, description="Name one of the models of /v1/models.")
    input: Annotated[list[Input], checked(_inputs)] = Field(description="A text, token ids, or a list of either.")
    encoding_format: Literal["float", "base64"] = Field("float", description="Use float or base64.")
    dimensions: int | None = Field(None, ge=1, description="Leave it out for the model's own size.")
    priority: int = Field(0, ge=-(2**31), lt=2**31, description="Lower is served first.")
    user: str | None = Field(None, max_length=1024)


async def embeddings(request: web.Request) -> web.Response:
    """Turn texts into vectors."""
    service = await request.app[TEXTS].ready()
    content = await read_object(request)
    caller = take_caller(request, service.identity.token, content)
    body = check(EmbeddingsBody, content)
    service.require_model(body.model)
    service.require_vectors(body.model)
    size = service.text.config.hidden_size
    if body.dimensions is not None and body.dimensions > size:
        raise InvalidRequest(
            f"dimensions is {body.dimensions}, this model has {size}: ask for less", param="dimensions"
        )
    prompts = [await _encoded(service, one) for one in body.input]
    vectors = await Encoding(service, caller, body.priority).run(prompts)
    data = [_entry(index, _cut(vector, body.dimensions), body) for index, vector in enumerate(vectors)]
    tokens = sum(map(len, prompts))
    answer = {
        "object": "list",
        "data": data,
        "model": service.identity.model_name,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }
    return web.Response(body=msgspec.json.encode(answer), content_type="application/json")


async def _encoded(service: Service, one: Input) -> list[int]:
    if isinstance(one, str):
        return await encode_text(service.text, one, add_special_tokens=True)
    service.require_ids("input", one)
    return one


class Encoding:
    """The vectors of one HTTP request."""

    def __init__(self, service: Service, caller: Caller, priority: int) -> None:
        self._service = service
        self._caller = caller
        self._priority = priority

    async def run(self, prompts: list[list[int]]) -> list[bytes]:
        """One vector (float32) for each prompt.

        Raises:
            ApiError: refused, failed, or given back.
        """
        window = self._service.link.require_serving().limits.running
        vectors: dict[int, bytes] = {}
        with Call(self._service.link) as call:
            sent = min(window, len(prompts))
            for index in range(sent):
                self._submit(call, index, prompts[index])
            while len(vectors) < len(prompts):
                for index, event in await call.events():
                    vector = _vector(event)
                    if vector is None:
                        continue
                    vectors[index] = vector
                    if sent < len(prompts):
                        self._submit(call, sent, prompts[sent])
                        sent += 1
        return [vectors[index] for index in range(len(prompts))]

    def _submit(self, call: Call, index: int, prompt: list[int]) -> None:
        call.submit(
            index,
            request_id=self._caller.request_id,
            prompt=prompt,
            outputs=(),
            sampling=Sampling(choice=index),
            max_tokens=1,
            priority=self._priority,
            journalled=False,
            text=self._service.text_name,
            encode=True,
        )


def _vector(event: Event) -> bytes | None:
    """What an event brings; None when it brings nothing yet."""
    error: ApiError | None = None
    match event:
        case Tokens(finish="error"):
            error = EngineFailed(event.message)
        case Tokens():
            return event.vector
        case Refused():
            error = refusal(event.code, event.message, event.retry_after_s)
        case Lost():
            error = HandedOver(event.reason, retry_after_s=RETRY_AFTER_S)
    if error is not None:
        raise error
    return None


def _cut(vector: bytes, dimensions: int | None) -> "array[float]":
    """The first numbers of a vector, brought to length 1 again."""
    numbers = array("f", vector)
    if dimensions is None or dimensions == len(numbers):
        return numbers
    first = numbers[:dimensions]
    length = math.sqrt(sum(number * number for number in first)) or 1.0
    return array("f", (number / length for number in first))


def _entry(index: int, numbers: "array[float]", body: EmbeddingsBody) -> dict[str, Any]:
    if body.encoding_format == "base64":
        written: Any = base64.b64encode(numbers.tobytes()).decode()
    else:  # nine digits are all that a float32 has
        written = msgspec.Raw(b"[" + b",".join(b"%.9g" % number for number in numbers) + b"]")
    return {"object": "embedding", "index": index, "embedding": written}
