"""Tools in a request, and the calls of an earlier answer that come back in its messages."""

import json
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from bireme_worker.http.bodies import Body, checked
from bireme_worker.http.remedies import wrong

MOST_TOOLS: Final = 128
NAME: Final = r"^[a-zA-Z0-9_.-]{1,64}$"


class ToolFunction(Body):
    """What a tool is called and takes."""

    name: str = Field(pattern=NAME)
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Body):
    """One tool."""

    type: Literal["function"]
    function: ToolFunction

    def for_template(self) -> dict[str, Any]:
        """As chat templates expect it."""
        return {"type": self.type, "function": self.function.model_dump(exclude_none=True, exclude={"strict"})}


class CalledFunction(Body):
    """A call's tool and arguments."""

    name: str = Field(max_length=64)
    arguments: str


class Call(Body):
    """A call that an assistant made."""

    id: str = Field(max_length=256)
    type: Literal["function"] = "function"
    function: CalledFunction

    def for_template(self) -> dict[str, Any]:
        """As chat templates expect it: they write the arguments as JSON themselves."""
        function = {"name": self.function.name, "arguments": _arguments(self.function.arguments)}
        return {"id": self.id, "type": self.type, "function": function}


def _arguments(text: str) -> Any:
    try:
        return json.loads(text) if text.strip() else {}
    except (ValueError, RecursionError):
        return text  # a call that broke off: the model shall see what it wrote


def _tool_choice(value: object) -> str:
    if value in ("none", "auto", "required"):
        return str(value)
    match value:
        case {"type": "function", "function": {"name": str(name), **more}, **others} if not (more or others):
            return f"={name}"
    raise wrong('must be "none", "auto", "required" or {"type": "function", "function": {"name": …}}')


ToolChoice = Annotated[str, checked(_tool_choice)]
"""none, auto, required, or = and the name of a tool."""


def check_tools(tools: list[Tool], choice: str) -> None:
    """Refuse what contradicts itself."""
    names = [tool.function.name for tool in tools]
    if len(set(names)) < len(names):
        raise wrong(f"tools has the same name twice: {', '.join(sorted({n for n in names if names.count(n) > 1}))}")
    if choice.startswith("=") and choice[1:] not in names:
        raise wrong(f"tool_choice names {choice[1:65]!r}, which is none of tools")
    if choice == "required" and not tools:
        raise wrong("tool_choice is required and tools is empty: send tools")
