"""The parts of an answer in OpenAI's shapes: the delta of an event, the message of a whole answer.

All parts of a piece go into one delta, since a journal line can stand for one event only. Ids of calls are made of the
request's id, so that a resumed stream goes on with the same ones.
"""

from collections.abc import Sequence
from typing import Any

from bireme_worker.text.answer_parts import Part, Said, Thought
from bireme_worker.text.tool_scanner import Arguments, Begun


def delta_of(parts: Sequence[Part], name: str) -> dict[str, Any]:
    """What ``parts`` add to the message; ``name`` is the choice's own among all answers."""
    texts = _texts(parts)
    calls: dict[int, dict[str, Any]] = {}
    for part in parts:
        match part:
            case Begun(index, tool):
                function = {"name": tool, "arguments": ""}
                calls[index] = {"index": index, "id": call_id(name, index), "type": "function", "function": function}
            case Arguments(index, text):
                call = calls.setdefault(index, {"index": index, "function": {"arguments": ""}})
                call["function"]["arguments"] += text
            case _:
                pass
    if calls:
        texts["tool_calls"] = list(calls.values())
    return texts or {"content": ""}


def message_of(parts: Sequence[Part], name: str) -> dict[str, Any]:
    """What ``parts``, all of a choice, make of its message."""
    delta = delta_of(parts, name)
    calls = [{key: value for key, value in call.items() if key != "index"} for call in delta.pop("tool_calls", ())]
    if calls:
        return {"content": None, **delta, "tool_calls": calls}
    return {"content": "", **delta}


def call_id(name: str, index: int) -> str:
    """The id of a choice's call number ``index``."""
    return f"call_{name}-{index}"


def _texts(parts: Sequence[Part]) -> dict[str, Any]:
    thought = "".join(part.text for part in parts if isinstance(part, Thought))
    said = "".join(part.text for part in parts if isinstance(part, Said))
    return ({"reasoning_content": thought} if thought else {}) | ({"content": said} if said else {})
