"""From the bytes of a request to a checked body, or to an error that names the place and the remedy."""

import difflib
from collections.abc import Mapping
from typing import Any, Final, TypeVar

from aiohttp import web
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, from_json

from bireme_worker.http.bodies import Body
from bireme_worker.http.errors import InvalidRequest
from bireme_worker.http.schema import Message, StreamOptions
from bireme_worker.http.tools import Tool
from bireme_worker.http.unbuilt import NEUTRAL

MAX_BODY: Final = 8 * 1024 * 1024
"""Bytes; far more than the longest context needs, as text or as ids."""
EXTENSION_KEY: Final = "bireme"
_NESTED: Final[Mapping[str, type[BaseModel]]] = {
    "messages": Message,
    "stream_options": StreamOptions,
    "tools": Tool,
}

B = TypeVar("B", bound=Body)


async def read_object(request: web.Request) -> dict[str, Any]:
    """Read the body, which must be one JSON object.

    Raises:
        InvalidRequest: it is none; says at which line and column.
    """
    content = await request.read()
    try:
        value = from_json(content, allow_inf_nan=False)
    except ValueError as error:
        raise InvalidRequest(f"the body is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise InvalidRequest(f"the body must be a JSON object, not {type(value).__name__}")
    return value


def check(model: type[B], value: Mapping[str, Any]) -> B:
    """Check a body against the model of its route.

    Raises:
        InvalidRequest: names the first field that is wrong, what is wrong with it, and the remedy.
    """
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise _explain(model, error.errors(include_url=False)[0]) from error


def _explain(model: type[Body], error: ErrorDetails) -> InvalidRequest:
    path = ".".join(str(part) for part in error["loc"])
    if error["type"] == "extra_forbidden":
        return InvalidRequest(_unknown(model, path, error["loc"]), param=path)
    if error["type"] == "missing":
        return InvalidRequest(f"{path} is missing.{_remedy(model, error['loc'])}", param=path)
    if error["type"] == "bireme":
        return InvalidRequest(f"{path} {error['msg']}".strip(), param=path or None)
    text = f"{path}: {error['msg'][0].lower()}{error['msg'][1:]}, got {_short(error['input'])}."
    return InvalidRequest(text + _remedy(model, error["loc"]), param=path or None)


def _unknown(model: type[Body], path: str, place: tuple[int | str, ...]) -> str:
    name = str(place[-1])
    if name in NEUTRAL:
        return f"{path} is not offered: leave it out"
    owner = _NESTED.get(str(place[0]), model) if len(place) > 1 else model
    close = difflib.get_close_matches(name, owner.model_fields, n=1)
    return f"{path} is an unknown field" + (f": did you mean {close[0]}?" if close else ": leave it out")


def _remedy(model: type[Body], place: tuple[int | str, ...]) -> str:
    field = model.model_fields.get(str(place[0])) if place else None
    return "" if field is None or field.description is None else f" {field.description}"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"
