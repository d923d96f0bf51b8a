"""What an answer is made of: the thought before it, what is said, and calls of tools, told apart as the text comes.

Models write them in their own ways: `<think>…</think>`; a call as JSON between `<tool_call>` tags (Qwen, Hermes), or
bare or behind `<|python_tag|>` (Llama 3). Where a request demands calls, the output is bound to a JSON list of them, or
to the arguments of the one that it names. All is a function of the text so far, however it was cut.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from bireme_worker.text.tool_scanner import Arguments, Begun, CallScanner

PYTHON_TAG: Final = "<|python_tag|>"
THINK, THINK_END = "<think>", "</think>"
_TOOL_CALL, _TOOL_CALL_END = "<tool_call>", "</tool_call>"


class ToolFormat(StrEnum):
    """How calls are written."""

    NONE = "none"
    HERMES = "hermes"
    LLAMA3 = "llama3"
    LIST = "list"
    NAMED = "named"


@dataclass(frozen=True, slots=True)
class Said:
    """Text for the reader."""

    text: str


@dataclass(frozen=True, slots=True)
class Thought:
    """Text that the model wrote for itself."""

    text: str


Part = Said | Thought | Begun | Arguments
_MARKS: Final = {ToolFormat.HERMES: (_TOOL_CALL, _TOOL_CALL_END), ToolFormat.LLAMA3: (PYTHON_TAG,)}


def tool_format_of(template: str) -> ToolFormat:
    """The format that a chat template teaches."""
    if _TOOL_CALL in template:
        return ToolFormat.HERMES
    return ToolFormat.LLAMA3 if PYTHON_TAG in template or "<|start_header_id|>" in template else ToolFormat.NONE


def marks_of(form: ToolFormat, *, thinks: bool) -> tuple[str, ...]:
    """What tells parts apart in the text. Some tokenizers call these tokens special, which no text shows else."""
    thought = (THINK, THINK_END) if thinks else ()
    return (*_MARKS.get(form, ()), *thought)


def calls_schema(tools: Sequence[Mapping[str, Any]], *, parallel: bool) -> dict[str, Any]:
    """The JSON schema of a list of calls; ``tools`` are the `function` objects of a request."""
    calls = [
        {
            "type": "object",
            "properties": {"name": {"const": tool["name"]}, "arguments": parameters_of(tool)},
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for tool in tools
    ]
    most = {} if parallel else {"maxItems": 1}
    return {"type": "array", "minItems": 1, **most, "items": {"anyOf": calls}}


def parameters_of(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema of a tool's arguments."""
    return tool.get("parameters") or {"type": "object"}


class AnswerParts:
    """The parts of one output. ``thinking``: None where the model does not think, else whether it does already.

    ``name``: the tool whose arguments a NAMED output is.
    """

    def __init__(self, form: ToolFormat, *, thinking: bool | None = None, name: str = "") -> None:
        self._form = form
        self._name = name
        self._thinking = bool(thinking)
        self._may_think = thinking is False
        self._opening = False
        self._held = ""
        self._scanner: CallScanner | None = None
        self._after_call = False
        self._said = False
        self.calls = 0

    def push(self, text: str) -> list[Part]:
        """The parts that ``text`` adds."""
        self._held += text
        return self._drain(last=False)

    def finish(self) -> list[Part]:
        """What was held back, when no more comes."""
        return self._drain(last=True)

    def _drain(self, *, last: bool) -> list[Part]:
        parts: list[Part] = []
        while self._held:
            before = self._held, self._thinking, self._may_think, self._scanner
            parts += self._step(last=last)
            if before == (self._held, self._thinking, self._may_think, self._scanner):
                break
        if last and self._scanner is not None:
            parts += self._give_back()
        return _merged(parts)

    def _step(self, *, last: bool) -> list[Part]:
        if self._may_think:
            return self._begin(last=last)
        if self._thinking:
            return self._think(last=last)
        if self._form is ToolFormat.NAMED:
            return self._argue()
        if self._scanner is not None:
            return self._scan()
        if self._form is ToolFormat.HERMES:
            return self._until_call(last=last)
        if self._form is not ToolFormat.NONE and not self._said:
            return self._bare_call(last=last)
        return self._say(self._take(len(self._held)))

    def _take(self, count: int) -> str:
        taken, self._held = self._held[:count], self._held[count:]
        return taken

    def _begin(self, *, last: bool) -> list[Part]:
        text = self._held.lstrip()
        if text.startswith(THINK):
            self._held, self._may_think, self._thinking = text[len(THINK) :].lstrip("\n"), False, True
        elif last or not THINK.startswith(text):
            self._may_think = False
        return []

    def _think(self, *, last: bool) -> list[Part]:
        if not self._opening:
            self._held = self._held.lstrip("\n")
        end = self._held.find(THINK_END)
        keep = end if end >= 0 else len(self._held) - (0 if last else _tail(self._held, (THINK_END, "\n" + THINK_END)))
        text = self._take(max(keep, 0))
        self._opening = self._opening or bool(text)
        if end >= 0:
            text = text.removesuffix("\n")
            self._held, self._thinking, self._after_call = self._held[len(THINK_END) :], False, True
        return [Thought(text)] if text else []

    def _argue(self) -> list[Part]:
        text = self._take(len(self._held)) if self.calls else self._take(len(self._held)).lstrip()
        if not text:
            return []
        begun: list[Part] = [] if self.calls else [Begun(0, self._name)]
        self.calls = 1
        return [*begun, Arguments(0, text)]

    def _scan(self) -> list[Part]:
        assert self._scanner is not None
        scanner, parts = self._scanner, list[Part]()
        for place, character in enumerate(self._held):
            parts += scanner.push(character)
            if scanner.done:
                self._held = self._held[place + 1 :]
                return [*parts, *self._end_call()]
        self._held = ""
        return parts

    def _end_call(self) -> list[Part]:
        assert self._scanner is not None
        if not self._scanner.is_call:
            return self._give_back()
        self._scanner, self._after_call = None, True
        self.calls += 1
        return []

    def _give_back(self) -> list[Part]:
        """What looked like a call and is none is text; one that broke off stays what was told of it."""
        scanner, self._scanner = self._scanner, None
        assert scanner is not None
        if scanner.is_call:
            self.calls += 1
            return []
        return self._say(scanner.raw)

    def _until_call(self, *, last: bool) -> list[Part]:
        if self._after_call:
            self._held = self._held.lstrip().removeprefix(_TOOL_CALL_END).lstrip()
            if _TOOL_CALL_END.startswith(self._held) and not last:
                return []
        start = self._held.find(_TOOL_CALL)
        if start >= 0:
            said = self._held[:start].rstrip()
            self._held = self._held[start:]
            if said:
                return self._say(said)
            rest = self._held[len(_TOOL_CALL) :].lstrip()
            if rest.startswith("{"):
                self._held, self._scanner = rest, CallScanner(self.calls)
            elif rest or last:
                return self._say(self._take(len(_TOOL_CALL)))
            return []
        keep = len(self._held) - (0 if last else _tail(self._held, (_TOOL_CALL,)))
        return self._say(self._take(len(self._held[:keep].rstrip()) if not last else keep))

    def _bare_call(self, *, last: bool) -> list[Part]:
        text = self._held.lstrip(" \n\t[],;" if self.calls or self._form is ToolFormat.LIST else None)
        text = text.removeprefix(PYTHON_TAG).lstrip()
        if text.startswith("{"):
            self._held, self._scanner = text, CallScanner(self.calls)
        elif text and (last or not PYTHON_TAG.startswith(text)):
            self._held = ""
            return self._say(text)
        elif not text:
            self._held = ""
        return []

    def _say(self, text: str) -> list[Part]:
        if self._after_call:
            text = text.lstrip()
        if text:
            self._said, self._after_call = True, False
        return [Said(text)] if text else []


def _tail(text: str, markers: Sequence[str]) -> int:
    """How long the end of ``text`` is that may be the beginning of a marker."""
    longest = max(len(marker) for marker in markers) - 1
    for length in range(min(longest, len(text)), 0, -1):
        if any(marker.startswith(text[-length:]) for marker in markers):
            return length
    return 0


def _merged(parts: Sequence[Part]) -> list[Part]:
    """Neighbours of one kind become one part, so that how the text was cut inside a piece does not show."""
    merged: list[Part] = []
    for part in parts:
        before = merged[-1] if merged else None
        match before, part:
            case (Said(), Said()):
                merged[-1] = Said(before.text + part.text)
            case (Thought(), Thought()):
                merged[-1] = Thought(before.text + part.text)
            case (Arguments(), Arguments()) if before.index == part.index:
                merged[-1] = Arguments(part.index, before.text + part.text)
            case _:
                merged.append(part)
    return merged
