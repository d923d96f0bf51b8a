"""Answers that must have a form, from a real engine of random weights: only masks can make it say what fits."""

import asyncio
import json
import re
import tempfile
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import jsonschema
import pytest
import pytest_asyncio

from bireme.names import Header
from bireme_worker.http.body import check
from bireme_worker.http.output_form import form_of_text
from bireme_worker.http.schema import CompletionBody
from bireme_worker.text.grammar import MOST_PROPERTIES
from bireme_worker.text.tokenizer import TextModel
from tests.http.in_process import InlineRanks, make_checkpoint, post, remove, whole_group
from tests.http.support import CHAT, COMPLETIONS, HELLO, Reader, read_lines

pytestmark = pytest.mark.asyncio(loop_scope="module")

PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["a", "é", "東京"]}, "maxItems": 2},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "weather", "parameters": {**PERSON, "title": "w"}}},
    {
        "type": "function",
        "function": {"name": "clock", "parameters": {"type": "object", "additionalProperties": False}},
    },
]
TOKEN = {Header.TOKEN.value: f"Bearer {bytes(range(32)).hex()}", Header.JOURNAL.value: "1"}


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="bireme-form-"))
    yield path
    remove(path)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def group(folder: Path) -> AsyncIterator[tuple[aiohttp.ClientSession, InlineRanks]]:
    async with whole_group(make_checkpoint(folder / "model"), folder) as group:
        yield group


@pytest.fixture
def client(group: tuple[aiohttp.ClientSession, InlineRanks]) -> aiohttp.ClientSession:
    return group[0]


async def chat(client: aiohttp.ClientSession, **fields: Any) -> dict[str, Any]:
    status, answer = await post(client, CHAT, {"messages": HELLO, "max_tokens": 150, **fields})
    assert status == 200, answer
    choice: dict[str, Any] = answer["choices"][0]
    return choice


def schema_format(schema: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "it", "schema": schema, **more}}


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("fields", [{"response_format": schema_format(PERSON, strict=True)}, {"guided_json": PERSON}])
async def test_json_fits_its_schema_at_any_temperature(
    client: aiohttp.ClientSession, fields: dict[str, Any], seed: int
) -> None:
    choice = await chat(client, temperature=1.0, seed=seed, **fields)
    jsonschema.validate(json.loads(choice["message"]["content"]), PERSON)
    assert choice["finish_reason"] == "stop"


async def test_any_json_object_can_be_asked_for(client: aiohttp.ClientSession) -> None:
    fields: dict[str, Any] = {"response_format": {"type": "json_object"}, "temperature": 0}
    choice = await chat(client, **fields, logit_bias={"9": 100}, max_tokens=60)
    text = choice["message"]["content"]
    assert text.startswith("{")
    if choice["finish_reason"] == "stop":
        assert isinstance(json.loads(text), dict)


@pytest.mark.parametrize("route", [CHAT, COMPLETIONS])
async def test_regex_choice_and_grammar_bind_both_routes(client: aiohttp.ClientSession, route: str) -> None:
    head: dict[str, Any] = {"messages": HELLO} if route == CHAT else {"prompt": "Hello"}
    for fields, pattern in (
        ({"guided_regex": "[0-9]{3}-[a-f]{2}"}, "[0-9]{3}-[a-f]{2}"),
        ({"guided_choice": ["yes", 'no, "never"', "だめ"]}, 'yes|no, "never"|だめ'),
        ({"structured_outputs": {"choice": ["left", "right"]}}, "left|right"),
        ({"guided_grammar": 'start: "a" start "b" | "c"'}, "a*cb*"),
    ):
        status, answer = await post(client, route, {**head, "max_tokens": 100, "temperature": 1.3, "n": 3, **fields})
        assert status == 200, answer
        for choice in answer["choices"]:
            text = choice["message"]["content"] if route == CHAT else choice["text"]
            assert choice["finish_reason"] == "length" or re.fullmatch(pattern, text), text


async def test_a_form_agrees_with_stop_bias_min_tokens_and_ignore_eos(client: aiohttp.ClientSession) -> None:
    digits = {"guided_regex": "[0-9]{1,12}", "temperature": 1.0, "seed": 5}
    long = await chat(client, **digits, min_tokens=8, ignore_eos=True)
    assert re.fullmatch("[0-9]{8,12}", long["message"]["content"])
    banned = await chat(client, **digits, logit_bias={str(token): -100 for token in range(32, 42)}, min_tokens=3)
    assert re.fullmatch("[0-9]+", banned["message"]["content"])
    stopped = await chat(client, guided_choice=["one two three"], stop=[" three"])
    assert (stopped["message"]["content"], stopped["finish_reason"]) == ("one two", "stop")
    whole = await chat(client, guided_choice=["one"], min_tokens=50)
    assert (whole["message"]["content"], whole["finish_reason"]) == ("one", "stop")
    cut = await chat(client, guided_choice=["one two three four five six"], max_tokens=2)
    assert cut["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"response_format": schema_format({"type": "objct"})}, "response_format"),
        ({"response_format": schema_format({"not": {}}, strict=True)}, "response_format"),
        ({"response_format": {"type": "yaml"}}, "response_format"),
        ({"guided_regex": "a{2,"}, "guided_regex"),
        ({"guided_regex": "(?=a)b"}, "guided_regex"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_json": "{"}, "guided_json"),
        ({"guided_grammar": "start: nothing"}, "guided_grammar"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs"),
        ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_regex"),
        ({"response_format": {"type": "json_object"}, "tools": TOOLS}, "response_format"),
    ],
)
async def test_a_form_that_is_none_is_refused_by_name(
    client: aiohttp.ClientSession, fields: dict[str, Any], field: str
) -> None:
    status, answer = await post(client, CHAT, {"messages": HELLO, **fields})
    assert status == 400
    assert field in answer["error"]["message"]


async def test_a_bound_stream_that_broke_off_anywhere_goes_on_alike(client: aiohttp.ClientSession) -> None:
    body: dict[str, Any] = {
        "model": "tiny", "messages": HELLO, "stream": True, "temperature": 1.0, "max_tokens": 150,
        "response_format": schema_format(PERSON),
    }  # fmt: skip
    extension = {"request_id": "r", "created": 1, "seed": 11}
    async with client.post(CHAT, json={**body, "bireme": extension}, headers=TOKEN) as response:
        lines = await read_lines(response)
    whole = Reader()
    for line in lines:
        whole.line(line)
    ends = [place + 1 for place, line in enumerate(lines) if not line.strip()]
    for cut in (ends[1], ends[len(ends) // 2], ends[-4]):
        reader = Reader()
        for line in lines[:cut]:
            reader.line(line)
        resumed = {**body, "bireme": {**extension, "resume": reader.resume()}}
        async with client.post(CHAT, json=resumed, headers=TOKEN) as rest:
            assert rest.status == 200, await rest.text()
            for line in await read_lines(rest):
                reader.line(line)
        assert _text(reader.delivered) == _text(whole.delivered)


def _text(events: list[bytes]) -> str:
    payloads = [json.loads(event[6:]) for event in events if not event.startswith(b"data: [DONE]")]
    deltas = [choice["delta"] for payload in payloads for choice in payload["choices"]]
    return "".join(delta.get("content") or "" for delta in deltas)


async def test_rows_without_a_form_go_on_while_bound_ones_wait(
    group: tuple[aiohttp.ClientSession, InlineRanks],
) -> None:
    client, ranks = group
    free, bound = await _both(client, ranks)
    assert free[1]["choices"][0]["finish_reason"] == "length"
    assert re.fullmatch("(ab)+", bound[1]["choices"][0]["text"])
    masked = [plan for plan in ranks.plans if plan.masks]
    assert masked
    assert all(set(plan.masks) <= {row.slot for row in plan.rows if row.output >= 0} for plan in masked)


async def _both(client: aiohttp.ClientSession, ranks: InlineRanks) -> list[tuple[int, Any]]:
    ranks.plans.clear()
    free = post(client, COMPLETIONS, {"prompt": "Hello", "max_tokens": 20, "ignore_eos": True, "seed": 1})
    form = post(client, COMPLETIONS, {"prompt": "Hello", "max_tokens": 40, "guided_regex": "(ab){10}", "seed": 1})
    return list(await asyncio.gather(free, form))


async def test_required_calls_fit_their_tools(client: aiohttp.ClientSession) -> None:
    choice = await chat(client, tools=TOOLS, tool_choice="required", temperature=1.0, seed=3, max_tokens=180)
    calls = choice["message"]["tool_calls"]
    assert choice["finish_reason"] in ("tool_calls", "length")
    assert choice["message"]["content"] is None
    assert {call["function"]["name"] for call in calls} <= {"weather", "clock"}
    if choice["finish_reason"] == "tool_calls":
        for call in calls:
            parameters = next(
                t["function"]["parameters"] for t in TOOLS if t["function"]["name"] == call["function"]["name"]
            )
            jsonschema.validate(json.loads(call["function"]["arguments"]), parameters)


@pytest.mark.parametrize("strict", [None, False, True])
async def test_only_a_strict_tool_refuses_what_can_not_be_enforced(
    client: aiohttp.ClientSession, strict: bool | None
) -> None:
    parameters = {"type": "object", "properties": {"a": {"type": "boolean", "not": {"const": 5}}}}
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters, "strict": strict}}
    for choice in ("required", {"type": "function", "function": {"name": "f"}}):
        body = {"messages": HELLO, "tools": [tool], "tool_choice": choice, "max_tokens": 4}
        status, answer = await post(client, CHAT, body)
        assert (status == 400) == bool(strict), answer
        assert not strict or "tools" in answer["error"]["message"]


async def test_a_named_tool_is_called_once_and_ends_with_stop(client: aiohttp.ClientSession) -> None:
    named = {"type": "function", "function": {"name": "weather"}}
    choice = await chat(client, tools=TOOLS, tool_choice=named, temperature=1.0, seed=4)
    (call,) = choice["message"]["tool_calls"]
    assert call["function"]["name"] == "weather"
    jsonschema.validate(json.loads(call["function"]["arguments"]), PERSON)
    assert choice["finish_reason"] == "stop"


def optional(properties: int) -> dict[str, Any]:
    return {"type": "object", "properties": {f"property_{number}": {"type": "integer"} for number in range(properties)}}


async def test_a_schema_of_very_many_properties_binds_every_token(client: aiohttp.ClientSession) -> None:
    # The empty object fits too; min_tokens makes it say more.
    fields: dict[str, Any] = {"response_format": schema_format(optional(1000)), "temperature": 1.0, "seed": 2}
    choice = await chat(client, **fields, min_tokens=3, max_tokens=12)
    assert re.match(r'\s*\{\s*"', choice["message"]["content"]), choice
    assert choice["finish_reason"] == "length"


async def test_an_object_of_too_many_properties_is_refused_with_the_numbers(client: aiohttp.ClientSession) -> None:
    schema = {"type": "array", "items": {"anyOf": [{"type": "null"}, optional(MOST_PROPERTIES + 1)]}}
    status, answer = await post(client, CHAT, {"messages": HELLO, "response_format": schema_format(schema)})
    assert status == 400
    assert answer["error"]["param"] == "response_format"
    assert f"{MOST_PROPERTIES + 1} properties, the most is {MOST_PROPERTIES}" in answer["error"]["message"]


async def test_a_large_schema_leaves_the_event_loop_to_others(text: TextModel) -> None:
    body = check(CompletionBody, {"model": "m", "prompt": "a", "guided_json": optional(1000)})
    compiling = asyncio.ensure_future(form_of_text(text, body))
    await asyncio.sleep(0)
    assert not compiling.done(), "it is compiled beside the loop"
    form = await compiling
    turned = threading.Event()
    asyncio.get_running_loop().call_later(0.01, turned.set)
    assert await form.step(turned.wait, 60), "what takes long runs beside the loop, which goes on"
    bound = form.constraint(text.eos_ids)
    assert bound is not None
    for token in text.encode('{"property_1', add_special_tokens=False):
        mask = await form.step(bound.mask, may_end=True)
        assert mask is not None
        assert mask[token >> 3] >> (token & 7) & 1
        await form.step(bound.push, token)
    hits = text.grammars.compile.cache_info().hits
    await form_of_text(text, body)
    assert text.grammars.compile.cache_info().hits == hits + 1
