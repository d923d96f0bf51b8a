"""A client's request, read once: what it asks, and the body that every attempt sends.

Workers are always asked to stream with a journal; ``wants_stream`` says what the client gets. What may be large stays
where it lies in the client's bytes, in every attempt.
"""

import re
import secrets
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from bireme.wire.journal import Extension, Resume
from bireme_router.affinity import Trail
from bireme_router.body import Pieces
from bireme_router.caller import Caller
from bireme_router.errors import BadRequest, NoRoute
from bireme_router.policies.cost import Cost, expected_cost
from bireme_router.policies.prefix_credit import chain
from bireme_router.policies.priority import Priority, of_number

CHAT: Final = "/v1/chat/completions"
COMPLETIONS: Final = "/v1/completions"
EMBEDDINGS: Final = "/v1/embeddings"
"""Answered at once and whole: nothing to resume, and a second try costs only its computation."""
_EXTENSION: Final = "bireme"
_SOUND_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,128}")


_LIST_OF_OTHERS: Final = re.compile(rb"\s*\[\s*[^0-9\]\s]")
"""How a list of prompts begins, and not one prompt of ids."""
_parts: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_KEPT_RAW: Final = frozenset(("messages", "tools", "prompt"))
"""Fields that may be large: checked to be JSON, and sent on as they came, without being taken apart."""


@dataclass(frozen=True)
class Job:
    """One request. ``deadline`` and ``arrived`` are times of the loop's clock."""

    path: str
    request_id: str
    created: int
    seed: int
    arrived: float
    deadline: float
    headers: Mapping[str, str]
    wants_stream: bool
    wants_usage: bool
    choices: int
    max_tokens: int | None
    body_bytes: int
    key: str
    priority: Priority
    zone: str
    trail: Trail = field(repr=False)
    fields: dict[str, Any] = field(repr=False)

    @property
    def whole(self) -> bool:
        """The worker answers with one object and no stream."""
        return self.path == EMBEDDINGS

    def cost(self, typical_output: float) -> Cost:
        """What it will probably cost."""
        return expected_cost(self.body_bytes, self.choices, self.max_tokens, typical_output)

    def body(self, resume: Resume | None) -> Pieces:
        """The JSON body of an attempt."""
        extension = Extension(self.request_id, self.created, self.seed, resume)
        small = {name: value for name, value in self.fields.items() if name not in _KEPT_RAW}
        pieces: list[bytes | memoryview] = [msgspec.json.encode({**small, _EXTENSION: extension})[:-1]]
        for name, value in self.fields.items():
            if name in _KEPT_RAW:
                pieces += [b',"%s":' % name.encode(), memoryview(value)]
        return [*pieces, b"}"]


def request_id_of(given: str | None) -> str:
    """The client's own request id if it is sound, else a new one."""
    return given if given is not None and _SOUND_ID.fullmatch(given) else uuid.uuid4().hex


def time_limit(header: str | None, longest_s: float) -> float:
    """Seconds that the request may take, by x-request-timeout.

    Raises:
        BadRequest: the header is no positive number of seconds.
    """
    if header is None:
        return longest_s
    try:
        asked = float(header)
    except ValueError:
        asked = 0.0
    if not 0.0 < asked < float("inf"):
        raise BadRequest(f"x-request-timeout is {header!r}: give a positive number of seconds")
    return min(asked, longest_s)


def read_fields(body: bytes, models: tuple[str, ...] | None) -> dict[str, Any]:
    """The JSON object in ``body``, with a model that is served here (``models`` None: not known yet).

    Raises:
        BadRequest: no JSON object, or a field that can't be right.
        NoRoute: another model.
    """
    try:
        parts = _parts.decode(body)
        fields = {name: raw if name in _KEPT_RAW else msgspec.json.decode(raw) for name, raw in parts.items()}
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _no_object(body, error) from None
    if _EXTENSION in fields:
        raise BadRequest(f"the key {_EXTENSION!r} belongs to the router: leave it out")
    model = fields.get("model")
    if not isinstance(model, str):
        raise BadRequest("`model` must be given, a string: see GET /v1/models")
    if models is not None and model not in models:
        raise NoRoute(f"The model `{model}` does not exist; here are: {', '.join(models)}", code="model_not_found")
    return fields


def _no_object(body: bytes, error: Exception) -> BadRequest:
    try:
        msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return BadRequest(f"the body is no JSON: {error}")
    return BadRequest("the body must be a JSON object")


def make_job(
    path: str,
    fields: dict[str, Any],
    *,
    body_bytes: int,
    request_id: str,
    headers: Mapping[str, str],
    caller: Caller,
    now: float,
    limit_s: float,
) -> Job:
    """What the fields ask.

    Raises:
        BadRequest: `stream`, `stream_options` or `priority` can't be right.
    """
    whole = path == EMBEDDINGS
    wants_stream = not whole and (fields.get("stream") or False)
    if not isinstance(wants_stream, bool):
        raise BadRequest("`stream` must be true or false")
    options = fields.get("stream_options")
    if options is not None and not (wants_stream and isinstance(options, dict)):
        raise BadRequest("`stream_options` must be an object, and only together with `stream`: true")
    if not wants_stream and not whole:
        options = {"include_usage": True}
    sent = dict(fields) if whole else {**fields, "stream": True}
    if options is not None:
        sent["stream_options"] = options
    if caller.priority is not None:
        sent.setdefault("priority", caller.priority - Priority.STANDARD)
    return Job(
        path=path,
        request_id=request_id,
        created=int(time.time()),
        seed=secrets.randbits(64),
        arrived=now,
        deadline=now + limit_s,
        headers=headers,
        wants_stream=wants_stream,
        wants_usage=bool(options and options.get("include_usage")),
        choices=_choices(fields),
        max_tokens=1 if whole else _max_tokens(fields),
        body_bytes=body_bytes,
        key=caller.key,
        priority=_priority(caller, fields),
        zone=caller.zone,
        trail=_trail(caller, fields),
        fields=sent,
    )


def _priority(caller: Caller, fields: dict[str, Any]) -> Priority:
    given = fields.get("priority")
    if given is not None and (isinstance(given, bool) or not isinstance(given, int)):
        raise BadRequest("`priority` must be an integer: lower goes first, 0 is usual")
    return caller.priority if caller.priority is not None else of_number(given or 0)


def _trail(caller: Caller, fields: dict[str, Any]) -> Trail:
    """What the prompt begins with, in the order of a chat template: tools, then messages."""
    texts = [memoryview(fields[name]) for name in ("tools", "messages", "prompt") if name in fields]
    text = texts[0] if len(texts) == 1 else memoryview(b"".join(texts))
    return Trail(chain(text), len(text), caller.session)


def _choices(fields: dict[str, Any]) -> int:
    n = fields.get("n")
    count = n if isinstance(n, int) and n > 0 else 1
    raw = memoryview(fields.get("prompt", b""))
    if not _LIST_OF_OTHERS.match(raw):
        return count
    return count * len(msgspec.json.decode(raw))


def _max_tokens(fields: dict[str, Any]) -> int | None:
    for name in ("max_completion_tokens", "max_tokens"):
        value = fields.get(name)
        if isinstance(value, int):
            return value
    return None
