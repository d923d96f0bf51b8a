"""Render a chat with the model's own Jinja template, in a sandbox, with what Hugging Face's templates expect to find.

The template comes with the checkpoint and the messages from a client: neither may reach the process, and whatever
goes wrong while rendering is the request's fault, not ours. Time is an argument, so that a resumed request renders
the same prompt.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from bireme_worker.checkpoints.errors import UnsupportedCheckpoint
from bireme_worker.text.errors import InvalidChat

# What a template raises on data that it did not foresee, a missing key or a list where it wants a text.
RENDER_ERRORS = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)


class ChatTemplate:
    """The compiled templates of one model; ``special_tokens`` such as bos_token are visible to them."""

    def __init__(self, template: str | Sequence[Mapping[str, str]], special_tokens: Mapping[str, str]) -> None:
        """Compile ``template``: one text, or a list of {name, template} with `default` and perhaps `tool_use`.

        Raises:
            UnsupportedCheckpoint: the template is not valid.
        """
        self._special = dict(special_tokens)
        environment = _environment()
        try:
            named = {"default": template} if isinstance(template, str) else {t["name"]: t["template"] for t in template}
            self._templates = {name: environment.from_string(source) for name, source in named.items()}
        except (jinja2.TemplateError, LookupError, TypeError) as error:
            raise UnsupportedCheckpoint(f"the chat template of the checkpoint is not valid: {error}") from error
        self.source = named.get("tool_use") or named.get("default") or ""
        if "default" not in self._templates:
            raise UnsupportedCheckpoint(f"the checkpoint has chat templates {sorted(self._templates)} but no default")

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        now: datetime,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """Return the prompt text. Keys with the value None are dropped from the messages, but for the content.

        ``variables`` are the client's own (chat_template_kwargs); they cannot replace ours.

        Raises:
            InvalidChat: the template refuses the messages or cannot cope with them.
        """
        name = "tool_use" if tools and "tool_use" in self._templates else "default"
        known = {
            "messages": [_without_nulls(message) for message in messages],
            "tools": tools,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
            "strftime_now": now.strftime,
        }
        try:
            return self._templates[name].render({**(variables or {}), **self._special, **known})
        except RENDER_ERRORS as error:
            raise InvalidChat(f"the model's chat template cannot render these messages: {error}") from error


def _without_nulls(message: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in message.items() if value is not None or key == "content"}


class _GenerationBlock(Extension):
    """`{% generation %}` marks what the assistant said, for training; here its body is simply rendered."""

    tags = {"generation"}  # noqa: RUF012 - jinja declares it as an instance variable

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _GenerationBlock]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own filter escapes HTML, which no model has seen in training."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)
