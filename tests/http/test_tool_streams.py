"""Streams with tool calls and thoughts: golden transcripts, byte for byte, and what the official client makes of them.

The model's words are scripted, byte after byte, as models of each format write them. A change of a transcript is seen
in review; BIREME_UPDATE_GOLDEN=1 writes them anew.
"""

import contextlib
import json
import os
import re
import tempfile
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest

from bireme.names import Header
from tests.http.in_process import http_app, remove
from tests.http.scripted_coordinator import ScriptedCoordinator, continuing
from tests.http.support import CHAT
from tests.support.byte_model import END_ID, HERMES, LLAMA3, byte_tokenizer, make_byte_model
from tests.support.rank_threads import TOKEN, identity

GOLDEN = Path(__file__).parent / "golden"
ASKED: list[Any] = [{"role": "user", "content": "Weather?"}]
TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": what,
            "strict": True,
            "parameters": {"type": "object", "properties": properties},
        },
    }
    for name, what, properties in (
        ("weather", "Tells the weather.", {"city": {"type": "string"}}),
        ("clock", "Tells the time.", {}),
    )
]
NAMED = {"type": "function", "function": {"name": "weather"}}
WEATHER = '{"city": "東京 \\"x\\""}'
WANTED = [("weather", {"city": '東京 "x"'}), ("clock", {})]
CALLS = (
    f'<tool_call>\n{{"name": "weather", "arguments": {WEATHER}}}\n</tool_call>\n'
    '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>'
)
LIST = f'[{{"name": "weather", "arguments": {WEATHER}}}, {{"name": "clock", "arguments": {{}}}}]'


class Case:
    """``said``: by the model. ``thought``, ``text``, ``calls`` and ``finish``: what a client must understand."""

    def __init__(
        self,
        said: str,
        *,
        template: str = HERMES,
        special_marks: bool = False,
        thought: str | None = None,
        text: str | None = None,
        calls: Sequence[tuple[str, Any]] = (),
        finish: str = "stop",
        **fields: Any,
    ) -> None:
        self.said, self.template, self.special_marks = said, template, special_marks
        self.thought, self.text, self.calls, self.finish = thought, text, list(calls), finish
        self.fields = fields


CASES = {
    "hermes_auto": Case(f"Let me see. {CALLS}", text="Let me see.", calls=WANTED, finish="tool_calls", tools=TOOLS),
    "hermes_text": Case("No need: 晴れ.", text="No need: 晴れ.", tools=TOOLS, tool_choice="auto"),
    "hermes_none": Case(CALLS, text=CALLS, tools=TOOLS, tool_choice="none"),
    "required": Case(LIST, calls=WANTED, finish="tool_calls", tools=TOOLS, tool_choice="required"),
    "named": Case(WEATHER, calls=WANTED[:1], tools=TOOLS, tool_choice=NAMED),
    "llama3_auto": Case(
        f'<|python_tag|>{{"name": "weather", "parameters": {WEATHER}}}; {{"name": "clock", "parameters": {{}}}}',
        template=LLAMA3,
        calls=WANTED,
        finish="tool_calls",
        tools=TOOLS,
    ),
    "thought_and_calls": Case(
        f"<think>\nHm, 東京.\n</think>\n\n{CALLS}", thought="Hm, 東京.", calls=WANTED, finish="tool_calls", tools=TOOLS
    ),
    "thought_begun": Case(
        "Hm.\n</think>\n\nSunny.", thought="Hm.", text="Sunny.", chat_template_kwargs={"enable_thinking": True}
    ),
    "special_marks": Case(
        f"<think>\nHm.\n</think>\n\n{CALLS}",
        special_marks=True,
        thought="Hm.",
        calls=WANTED,
        finish="tool_calls",
        tools=TOOLS,
    ),
    "named_after_a_thought": Case(
        f"<think>Hm.</think>{WEATHER}", thought="Hm.", calls=WANTED[:1], tools=TOOLS, tool_choice=NAMED
    ),
}


@contextlib.asynccontextmanager
async def speaking(case: Case) -> AsyncIterator[aiohttp.ClientSession]:
    """The HTTP application before a model that says what the case wants."""
    folder = Path(tempfile.mkdtemp(prefix="bireme-tools-"))
    try:
        source = make_byte_model(folder / "smol", case.template, special_marks=case.special_marks)
        pod = replace(identity(source), state_dir=folder, model_name="smol")
        coordinator = ScriptedCoordinator(pod.requests_socket, TOKEN, context=1024)
        ids = byte_tokenizer(special_marks=case.special_marks).encode(case.said).ids
        coordinator.script = continuing([*ids, END_ID], group=5)
        await coordinator.start()
        async with http_app(pod, pod.requests_socket) as client:
            yield client
        await coordinator.stop()
    finally:
        remove(folder)


@pytest.mark.parametrize("name", CASES)
async def test_a_stream_of_calls_and_thoughts_is_openais_to_the_byte_and_to_the_client(name: str) -> None:
    case = CASES[name]
    async with speaking(case) as client:
        transcript = await transcript_of(client, case)
        if os.environ.get("BIREME_UPDATE_GOLDEN"):
            (GOLDEN / f"{name}.sse").write_text(transcript)
        assert transcript == (GOLDEN / f"{name}.sse").read_text()
        async with openai.AsyncOpenAI(base_url=f"{client._base_url}v1", api_key="none", max_retries=0) as api:
            understood(await streamed(api, case), case)
            whole = await api.chat.completions.create(model="smol", messages=ASKED, **extra(case))
            understood(whole, case)


async def transcript_of(client: aiohttp.ClientSession, case: Case) -> str:
    body = {"model": "smol", "messages": ASKED, "stream": True, "stream_options": {"include_usage": True}}
    async with client.post(CHAT, json={**body, **case.fields}, headers={Header.REQUEST_ID.value: "r"}) as answer:
        assert answer.status == 200, await answer.text()
        return re.sub(r'"created":\d+', '"created":0', await answer.text())


def extra(case: Case) -> dict[str, Any]:
    """What the client knows goes as its own arguments, the rest beside them."""
    fields = dict(case.fields)
    more = {key: fields.pop(key) for key in ("chat_template_kwargs",) if key in fields}
    return {**fields, "extra_body": more}


async def streamed(api: openai.AsyncOpenAI, case: Case) -> Any:
    """The client's own sum of the stream."""
    async with api.chat.completions.stream(model="smol", messages=ASKED, **extra(case)) as stream:
        async for _ in stream:
            pass
        return await stream.get_final_completion()


def understood(answer: Any, case: Case) -> None:
    (choice,) = answer.choices
    message = choice.message
    assert (message.content or None, choice.finish_reason) == (case.text, case.finish)
    assert getattr(message, "reasoning_content", None) == case.thought
    calls = message.tool_calls or []
    assert [(call.function.name, json.loads(call.function.arguments)) for call in calls] == case.calls
    assert len({call.id for call in calls}) == len(calls)
    assert all(call.type == "function" for call in calls)
