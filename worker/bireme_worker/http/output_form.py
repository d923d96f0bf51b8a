"""The form of an answer: what binds it, and how it is taken apart into thought, text and calls.

It is decided from the request, the model's chat template and the end of the prompt, so that a resumed request, whose
prompt comes as ids, gets the same.
"""

import asyncio
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, ParamSpec, TypeVar

from bireme_worker.http.errors import InvalidRequest
from bireme_worker.http.forms import Form
from bireme_worker.http.schema import ChatBody, CompletionBody
from bireme_worker.text.answer_parts import (
    THINK,
    THINK_END,
    AnswerParts,
    ToolFormat,
    calls_schema,
    marks_of,
    parameters_of,
)
from bireme_worker.text.errors import InvalidGrammar
from bireme_worker.text.grammar import Constraint, Grammar, Thought, json_grammar
from bireme_worker.text.tokenizer import TextModel

P = ParamSpec("P")
T = TypeVar("T")
_COMPILER: Final = ThreadPoolExecutor(1, "grammar")
"""One thread: who waits for the same grammar finds it compiled, and long prompts keep the other threads."""
_TAIL: Final = 8
"""Tokens at the end of a prompt in which a thought may be opened."""


@dataclass(frozen=True, slots=True)
class OutputForm:
    """``tools`` NONE and ``thinking`` None: the text is sent as it is. ``name``: the tool of a NAMED output.

    ``keep``: special tokens that belong to the text.
    """

    tools: ToolFormat = ToolFormat.NONE
    name: str = ""
    thinking: bool | None = None
    grammar: Grammar | None = None
    thought: Thought | None = None
    keep: frozenset[int] = frozenset()

    def parts(self) -> AnswerParts | None:
        """What takes the text of one choice apart, None where that is not wanted."""
        if self.tools is ToolFormat.NONE and self.thinking is None:
            return None
        return AnswerParts(self.tools, thinking=self.thinking, name=self.name)

    async def step(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Let a choice take its next tokens or make its mask: in a thread where a large grammar makes it long."""
        if self.grammar is None or not self.grammar.slow:
            return work(*args, **kwargs)
        return await asyncio.to_thread(work, *args, **kwargs)

    def constraint(self, stops: Collection[int]) -> Constraint | None:
        """What binds one choice, None where it is free."""
        return None if self.grammar is None else self.grammar.begin(stops, self.thought)


FREE: Final = OutputForm()


async def form_of_chat(text: TextModel, body: ChatBody, prompt: Sequence[int]) -> OutputForm:
    """The form of a chat's answer.

    Raises:
        InvalidRequest: what shall bind it can't.
    """
    thinking, thought = _thinking(text, prompt)
    tools, form = ToolFormat.NONE, body.form
    if body.tools and body.tool_choice != "none":
        tools, form = _of_tools(text, body)
    return OutputForm(
        tools=tools,
        name=body.tool_choice.removeprefix("="),
        thinking=thinking,
        grammar=await _compiled(text, form),
        thought=thought,
        keep=text.ids_called(*marks_of(tools, thinks=thinking is not None)),
    )


async def form_of_text(text: TextModel, body: CompletionBody) -> OutputForm:
    """The form of a continued text.

    Raises:
        InvalidRequest: what shall bind it can't.
    """
    return OutputForm(grammar=await _compiled(text, body.form))


def _of_tools(text: TextModel, body: ChatBody) -> tuple[ToolFormat, Form | None]:
    if not text.takes_tools:
        raise InvalidRequest("tools: this model's chat template has no place for tools: leave them out", param="tools")
    functions = [tool.function.model_dump() for tool in body.tools]
    strict = any(tool.function.strict for tool in body.tools)
    if body.tool_choice == "auto":
        return text.tool_format, None
    try:
        if body.tool_choice == "required":
            schema = calls_schema(functions, parallel=body.parallel_tool_calls)
            return ToolFormat.LIST, Form("tools", json_grammar(schema, strict=strict))
        named = next(one for one in functions if f"={one['name']}" == body.tool_choice)
        return ToolFormat.NAMED, Form("tools", json_grammar(parameters_of(named), strict=strict))
    except (InvalidGrammar, RecursionError, UnicodeError) as error:
        raise InvalidRequest(f"tools can't be used: {error}", param="tools") from error


def _thinking(text: TextModel, prompt: Sequence[int]) -> tuple[bool | None, Thought | None]:
    """Whether the model thinks: None for no, True when the prompt has begun it, False when it may."""
    if text.thought_ids is None:
        return None, None
    tail = text.decode(prompt[-_TAIL:], skip_special_tokens=False).rstrip()
    if tail.endswith(THINK_END):  # the template has ended the thought before it began
        return None, None
    begun = tail.endswith(THINK)
    return begun, Thought(*text.thought_ids, begun=begun)


async def _compiled(text: TextModel, form: Form | None) -> Grammar | None:
    if form is None:
        return None
    try:
        return await asyncio.get_running_loop().run_in_executor(_COMPILER, text.grammars.compile, form.grammar)
    except InvalidGrammar as error:
        raise InvalidRequest(f"{form.field} can't be used: {error}", param=form.field) from error
