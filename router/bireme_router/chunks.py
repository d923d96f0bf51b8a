"""Puts the chunks of a stream together into the object that a client gets without streaming.

Works by shape, so that fields which engines add of their own survive: text grows, lists grow, objects merge, and of
anything else the last value that is not null counts. Tool calls are lists keyed by their own index.
"""

from typing import Any, Final

Json = Any

_OBJECTS: Final = {"chat.completion.chunk": "chat.completion"}
_SAID_ONCE: Final = frozenset(("role", "id", "type", "name"))


class Aggregate:
    """Chunks of one chat or text completion, in order."""

    def __init__(self) -> None:
        self._head: dict[str, Json] = {}
        self._choices: dict[int, _Choice] = {}
        self._usage: Json = None

    def add(self, chunk: dict[str, Json]) -> None:
        """One chunk."""
        for name, value in chunk.items():
            if name == "choices":
                for part in value:
                    self._choice(part["index"]).add(part)
            elif name == "usage":
                self._usage = value if value is not None else self._usage
            elif self._head.get(name) is None:
                self._head[name] = value

    def whole(self) -> dict[str, Json]:
        """The object."""
        kind = self._head.get("object")
        head = {**self._head, "object": _OBJECTS.get(kind, kind) if isinstance(kind, str) else kind}
        choices = [self._choices[index].whole() for index in sorted(self._choices)]
        return {**head, "choices": choices, "usage": self._usage}

    def _choice(self, index: int) -> "_Choice":
        if index not in self._choices:
            self._choices[index] = _Choice(index)
        return self._choices[index]


class _Choice:
    def __init__(self, index: int) -> None:
        self._fields: dict[str, Json] = {"index": index}
        self._message = _Growing()
        self._text: list[str] = []
        self._chat = False

    def add(self, part: dict[str, Json]) -> None:
        for name, value in part.items():
            if name == "delta":
                self._chat = True
                self._message.add(value)
            elif name == "text":
                self._text.append(value)
                self._fields["text"] = None
            elif name == "logprobs" or isinstance(value, list):
                self._fields[name] = _merged(self._fields.get(name), value)
            elif name != "index" and (value is not None or name not in self._fields):
                self._fields[name] = value

    def whole(self) -> dict[str, Json]:
        if not self._chat:
            return {**self._fields, "text": "".join(self._text)}
        index = self._fields.pop("index")
        return {"index": index, "message": self._message.whole(), **self._fields}


class _Growing:
    """A chat message from its deltas; text is joined once at the end."""

    def __init__(self) -> None:
        self._texts: dict[str, list[str]] = {}
        self._others: dict[str, Json] = {}
        self._calls: dict[int, dict[str, Json]] = {}

    def add(self, delta: dict[str, Json]) -> None:
        for name, value in delta.items():
            if name == "tool_calls":
                for call in value or ():
                    self._calls[call["index"]] = _merged(self._calls.get(call["index"]), call)
            elif isinstance(value, str) and name not in _SAID_ONCE:
                self._texts.setdefault(name, []).append(value)
            elif self._others.get(name) is None:
                self._others[name] = value

    def whole(self) -> dict[str, Json]:
        message: dict[str, Json] = {"role": "assistant", "content": None, "refusal": None}
        message |= self._others
        message |= {name: "".join(parts) for name, parts in self._texts.items()}
        if self._calls:
            message["tool_calls"] = [_without_index(self._calls[index]) for index in sorted(self._calls)]
            message["content"] = message["content"] or None
        return message


def _merged(before: Json, now: Json) -> Json:
    if before is None:
        return now
    if isinstance(before, dict) and isinstance(now, dict):
        return before | {
            name: before[name] if name in _SAID_ONCE and before.get(name) else _merged(before.get(name), value)
            for name, value in now.items()
        }
    if isinstance(before, list) and isinstance(now, list):
        return before + now
    if isinstance(before, str) and isinstance(now, str):
        return before + now
    return before if now is None else now


def _without_index(call: dict[str, Json]) -> dict[str, Json]:
    return {name: value for name, value in call.items() if name != "index"}
