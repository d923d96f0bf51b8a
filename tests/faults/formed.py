"""Requests whose answers must have a form: JSON by a schema, and a call of a tool. They are judged twice.

By their form, and by the same request sent again undisturbed, which must give the same ids, text and calls: the form
narrows every draw, so the plain oracle has no say.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

KINDS: Final = ("json", "tool")
_PLACE: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 24},
        "population": {"type": "integer"},
        "kind": {"enum": ["village", "town", "city"]},
    },
    "required": ["name", "population", "kind"],
    "additionalProperties": False,
}
_TOOL: Final = {
    "type": "function",
    "function": {"name": "look_up", "description": "Look a place up.", "parameters": _PLACE},
}


_TEMPLATE: Final = (
    '{% if tools %}Tools: {{ tools | tojson }} Answer with <tool_call>{"name": …}</tool_call>.\n{% endif %}'
)


def teach_tools(directory: Path) -> None:
    """SmolLM2's chat template knows no tools: put them before it."""
    path = directory / "tokenizer_config.json"
    settings = json.loads(path.read_text())
    path.unlink()  # it may be a link to the file of somebody else
    path.write_text(json.dumps({**settings, "chat_template": _TEMPLATE + settings["chat_template"]}))


@dataclass
class Call:
    """One call as its pieces came."""

    id: str = ""
    name: str = ""
    arguments: str = ""


def fields(kind: str) -> dict[str, Any]:
    """What makes a request one of this kind."""
    if kind == "tool":
        return {"tools": [_TOOL], "tool_choice": "required", "ignore_eos": False}
    form = {"type": "json_schema", "json_schema": {"name": "place", "strict": True, "schema": _PLACE}}
    return {"response_format": form, "ignore_eos": False}


def take(calls: dict[int, Call], pieces: list[dict[str, Any]]) -> None:
    """Add what one event brought."""
    for number, piece in enumerate(pieces):
        call, function = calls.setdefault(piece.get("index", number), Call()), piece["function"]
        call.id += piece.get("id") or ""
        call.name += function.get("name") or ""
        call.arguments += function.get("arguments") or ""


def judge(kind: str, text: str, finish: str | None, calls: dict[int, Call]) -> list[str]:
    """What is wrong with the form of a complete answer; one that met its limit has only begun to have it."""
    if finish == "length":
        return []
    if kind == "json":
        return _wrong(text) + ([] if finish == "stop" else [f"finish {finish}"])
    wrong = [] if finish == "tool_calls" and calls else [f"finish {finish} with {len(calls)} calls"]
    for call in calls.values():
        wrong += _wrong(call.arguments)
        wrong += [] if call.name == "look_up" and call.id else [f"call {call}"]
    return wrong


def _wrong(text: str) -> list[str]:
    try:
        place = json.loads(text)
    except ValueError as error:
        return [f"{text!r} is no JSON: {error}"]
    return [] if sorted(place) == sorted(_PLACE["required"]) else [f"{text!r} does not fit the schema"]
