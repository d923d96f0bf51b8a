"""One tool call as a model writes it, `{"name": …, "arguments": {…}}`, read character by character.

The name is told as soon as it is known, the arguments as they come, word for word: so a client sees them grow, and
what it has seen is a function of the text alone. An object that is no call is given back whole.
"""

import json
from dataclasses import dataclass
from typing import Final

_ARGUMENTS: Final = ("arguments", "parameters")


@dataclass(frozen=True, slots=True)
class Begun:
    """A call of the tool ``name``: number ``index`` of this output."""

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class Arguments:
    """More of a call's arguments."""

    index: int
    text: str


class CallScanner:
    """Reads one object. ``done``: it is complete; ``raw``: its text, for whoever finds that it is no call."""

    def __init__(self, index: int) -> None:
        self._index = index
        self._name: str | None = None
        self._depth = 0
        self._in_string = self._escaped = False
        self._key = ""
        self._value: str | None = None
        self._held = ""
        self._told = self._given = False
        self.raw = ""
        self.done = False

    @property
    def is_call(self) -> bool:
        """Whether the name is known."""
        return self._name is not None

    def push(self, character: str) -> list[Begun | Arguments]:
        """Take one character."""
        self.raw += character
        inside = self._in_string
        self._track(character)
        if self._value is None:
            self._take_key(character, inside=inside)
        elif not inside and (self.done or (character == "," and self._depth == 1)):
            self._end_value()
        else:
            self._take_value(character, inside=inside)
        return self._news()

    def _track(self, character: str) -> None:
        if self._in_string:
            if self._escaped:
                self._escaped = False
            elif character == "\\":
                self._escaped = True
            elif character == '"':
                self._in_string = False
        elif character == '"':
            self._in_string = True
        elif character in "{[":
            self._depth += 1
        elif character in "}]":
            self._depth -= 1
            self.done = self._depth == 0

    def _take_key(self, character: str, *, inside: bool) -> None:
        if inside or self._in_string:
            self._key += character
        elif character == ":":
            self._key, self._value = _string(self._key) or "", ""

    def _take_value(self, character: str, *, inside: bool) -> None:
        assert self._value is not None
        if not self._value.startswith("{"):
            self._value = (self._value + character).lstrip()
        if self._key in _ARGUMENTS and self._value.startswith("{"):
            # Behind its end may be spaces, which are not part of it.
            self._held += character if self._depth > 1 or (character == "}" and not inside) else ""
        elif self._key == "name" and inside and not self._in_string:
            self._name = _string(self._value)

    def _end_value(self) -> None:
        assert self._value is not None
        if self._key in _ARGUMENTS and not self._value.startswith("{"):
            self._held += _string(self._value.strip()) or self._value.strip()
        self._key, self._value = "", None

    def _news(self) -> list[Begun | Arguments]:
        if self._name is None:
            return []
        news: list[Begun | Arguments] = []
        if not self._told:
            self._told = True
            news.append(Begun(self._index, self._name))
        if self.done and not self._held and not self._given:
            self._held = "{}"
        if self._held:
            news.append(Arguments(self._index, self._held))
            self._held, self._given = "", True
        return news


def _string(text: str) -> str | None:
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, str) else None
