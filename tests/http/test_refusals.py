"""Every refusal names the field and the remedy, and says that nothing was computed."""

import asyncio
import io
import json
from typing import Any

import aiohttp
import pytest

from bireme.names import Header
from bireme.wire.requests import Refused
from tests.http.scripted_coordinator import LIMIT_S, Script, ScriptedCoordinator, continuing
from tests.http.support import CHAT, COMPLETIONS, HELLO, ROUTER, Stand, chat_body, extension

pytestmark = pytest.mark.asyncio(loop_scope="session")

VOCABULARY = 49152


async def refused(response: aiohttp.ClientResponse, status: int) -> dict[str, Any]:
    body = json.loads(await response.read())
    assert response.status == status, body
    assert response.headers[Header.UNPROCESSED] == "1"
    assert set(body["error"]) == {"message", "type", "param", "code"}
    error: dict[str, Any] = body["error"]
    return error


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"max_tokens": 0}, "max_tokens", "at least 1 token"),
        ({"max_tokens": -5}, "max_tokens", "got -5"),
        ({"max_completion_tokens": 0}, "max_completion_tokens", "leave it out"),
        ({"max_tokens": "5"}, "max_tokens", "integer"),
        ({"max_tokens": True}, "max_tokens", "integer"),
        ({"max_tokens": 5, "max_completion_tokens": 6}, None, "max_completion_tokens"),
        ({"max_tokens": 100_000}, "max_tokens", "at most 481"),
        ({"min_tokens": 6, "max_tokens": 5}, "min_tokens", "lower it"),
        ({"min_tokens": 10**30}, "min_tokens", "at most 481"),
        ({"temperature": 2.1}, "temperature", "2"),
        ({"temperature": -0.1}, "temperature", "0 is greedy"),
        ({"top_p": 0}, "top_p", "1 is off"),
        ({"top_k": -2}, "top_k", "0 or -1 is off"),
        ({"min_p": 1.5}, "min_p", "0 is off"),
        ({"frequency_penalty": 3}, "frequency_penalty", "2"),
        ({"presence_penalty": -3}, "presence_penalty", "-2"),
        ({"repetition_penalty": 0}, "repetition_penalty", "1 is off"),
        ({"seed": 1.5}, "seed", "integer"),
        ({"stop": ""}, "stop", "empty"),
        ({"stop": ["x"] * 17}, "stop", "the most is 16"),
        ({"stop": [1]}, "stop", "list of strings"),
        ({"stop_token_ids": [VOCABULARY]}, "stop_token_ids", f"the last one is {VOCABULARY - 1}"),
        ({"stop_token_ids": [-1]}, "stop_token_ids", "-1"),
        ({"logit_bias": {str(VOCABULARY): 1}}, "logit_bias", str(VOCABULARY)),
        ({"logit_bias": {"cat": 1}}, "logit_bias", "'cat'"),
        ({"logit_bias": {"5": 101}}, "logit_bias", "-100 to 100"),
        ({"logit_bias": [5]}, "logit_bias", "object"),
        ({"top_logprobs": 3}, None, "needs logprobs: true"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "20"),
        ({"logprobs": 3}, "logprobs", "boolean"),
        ({"n": 0}, "n", "1"),
        ({"n": 129}, "n", "128"),
        ({"n": 128}, "n", "holds 100 choices"),
        ({"stream": "yes"}, "stream", "boolean"),
        ({"stream_options": {"include_usage": True}}, None, "stream: true"),
        (
            {"stream": True, "stream_options": {"include_usages": True}},
            "stream_options.include_usages",
            "include_usage?",
        ),
        ({"max_token": 5}, "max_token", "did you mean max_tokens?"),
        ({"zebra": 5}, "zebra", "unknown field"),
        ({"zebra": None}, "zebra", "unknown field"),
        ({"store": True}, "store", "Nothing is stored"),
        ({"tools": [{"type": "function"}]}, "tools.0.function", "missing"),
        ({"response_format": {"type": "yaml"}}, "response_format", "json_schema"),
        ({"modalities": ["audio"]}, "modalities", "not offered"),
        ({"audio": {}}, "audio", "not offered"),
        ({"messages": []}, "messages", "at least 1"),
        ({"messages": "hi"}, "messages", "list"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages.0", "tool_call_id"),
        ({"messages": [{"role": "king", "content": "x"}]}, "messages.0.role", "'user'"),
        ({"messages": [{"role": "user"}]}, "messages.0", "has no content"),
        ({"messages": [{"role": "user", "content": None}]}, "messages.0", "has no content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages.0.content", "'image_url'"),
        ({"messages": [{"role": "user", "content": "x", "nmae": "y"}]}, "messages.0.nmae", "did you mean name?"),
        ({"messages": [{"role": "user", "content": "x", "tool_calls": [1]}]}, "messages.0.tool_calls.0", "dictionary"),
        ({"priority": 2**31}, "priority", "2147483648"),
        ({"model": None}, "model", "missing"),
    ],
)
async def test_a_wrong_field_of_a_chat_is_named_with_its_remedy(
    client: aiohttp.ClientSession, coordinator: ScriptedCoordinator, fields: dict[str, Any], param: str, words: str
) -> None:
    async with client.post(CHAT, json=chat_body() | fields) as response:
        error = await refused(response, 400)
    assert error["param"] == param
    assert words in error["message"]
    assert coordinator.submits == []


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"prompt": []}, "prompt", "list of token ids"),
        ({"prompt": ""}, "prompt", "no tokens"),
        ({"prompt": [[1], []]}, "prompt", "neither"),
        ({"prompt": [1, "a"]}, "prompt", "token ids"),
        ({"prompt": [VOCABULARY]}, "prompt", str(VOCABULARY)),
        ({"prompt": [-1]}, "prompt", "-1"),
        ({"prompt": [10**40]}, "prompt", "last one"),
        ({"prompt": None}, "prompt", "missing"),
        ({"logprobs": 6}, "logprobs", "5"),
        ({"logprobs": True}, "logprobs", "integer"),
        ({"echo": 1}, "echo", "boolean"),
        ({"best_of": 2, "n": 3}, None, "best_of must be at least n"),
        ({"suffix": "x"}, "suffix", "not offered"),
        ({"messages": HELLO}, "messages", "unknown field"),
    ],
)
async def test_a_wrong_field_of_a_completion_is_named_with_its_remedy(
    client: aiohttp.ClientSession, coordinator: ScriptedCoordinator, fields: dict[str, Any], param: str, words: str
) -> None:
    async with client.post(COMPLETIONS, json={"model": "smol", "prompt": "x"} | fields) as response:
        error = await refused(response, 400)
    assert error["param"] == param
    assert words in error["message"]
    assert coordinator.submits == []


async def test_an_unknown_model_is_a_404_that_names_the_known_ones(
    client: aiohttp.ClientSession, coordinator: ScriptedCoordinator
) -> None:
    async with client.post(CHAT, json=chat_body(model="gpt-9")) as response:
        error = await refused(response, 404)
    assert error["code"] == "model_not_found"
    assert "smol, smol-alias, org/smol" in error["message"]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b'{"model": "smol",\n "messages": [}', "line 2 column"),
        (b"", "line 1"),
        (b"[1]", "not list"),
        (b'{"model": NaN}', "column 11"),
        (b'{"model": "\xff"}', "not valid JSON"),
        (b'{"a":' * 10_000, "recursion"),
    ],
)
async def test_a_body_that_is_no_json_object_is_refused_with_its_position(
    client: aiohttp.ClientSession, coordinator: ScriptedCoordinator, data: bytes, words: str
) -> None:
    async with client.post(CHAT, data=data) as response:
        assert words in (await refused(response, 400))["message"]


async def test_infinity_is_refused_by_its_field(
    client: aiohttp.ClientSession, coordinator: ScriptedCoordinator
) -> None:
    data = json.dumps(chat_body(temperature=0)).replace('"temperature": 0', '"temperature": 1e999').encode()
    async with client.post(CHAT, data=data) as response:
        assert (await refused(response, 400))["param"] == "temperature"


async def test_a_prompt_longer_than_the_context_is_refused_with_both_numbers(
    client: aiohttp.ClientSession, coordinator: ScriptedCoordinator
) -> None:
    coordinator.script = continuing([5])
    async with client.post(COMPLETIONS, json={"model": "smol", "prompt": [5] * 511, "max_tokens": 1}) as response:
        assert response.status == 200
    for length in (512, 3000):
        async with client.post(
            COMPLETIONS, json={"model": "smol", "prompt": [5] * length, "max_tokens": 1}
        ) as response:
            message = (await refused(response, 400))["message"]
            assert f"{length} tokens" in message
            assert "context has 512" in message


async def test_a_context_that_only_the_kv_cache_bounds_is_refused_with_the_remedy(
    client: aiohttp.ClientSession, coordinator: ScriptedCoordinator
) -> None:
    async def told(length: int, tokens: int) -> bool:
        body = {"model": "smol", "prompt": [5] * length, "max_tokens": tokens}
        async with client.post(COMPLETIONS, json=body) as response:
            message = (await refused(response, 400))["message"]
        return "make engine.kvCache.bytes 4 times as large" in message

    assert not await told(600, 1)
    coordinator.wanted = 2048
    coordinator.announce()
    try:
        async with asyncio.timeout(LIMIT_S):
            while not await told(600, 1):
                await asyncio.sleep(0.01)
        assert await told(500, 100)
        assert not await told(3000, 1)
    finally:
        coordinator.wanted = 0
        coordinator.announce()


async def test_a_body_over_the_limit_is_a_413(client: aiohttp.ClientSession, coordinator: ScriptedCoordinator) -> None:
    async with client.post(CHAT, data=io.BytesIO(b" " * (8 * 1024 * 1024 + 1))) as response:
        error = await refused(response, 413)
    assert "8388608" in error["message"]


async def test_routes_and_methods_that_do_not_exist_are_named(client: aiohttp.ClientSession, stand: Stand) -> None:
    async with client.post("/v1/responses", json={}) as response:
        assert (await refused(response, 404))["message"] == "/v1/responses is not offered: use /v1/chat/completions"
    async with client.post("/v1/audio/speech", json={}) as response:
        assert "only text is served" in (await refused(response, 404))["message"]
    async with client.post("/v1/nothing", json={}) as response:
        assert (await refused(response, 404))["message"] == "there is no route POST /v1/nothing"
    async with client.get(CHAT) as response:
        assert "use POST" in (await refused(response, 405))["message"]


@pytest.mark.parametrize(("code", "retry_after"), [(400, None), (409, None), (429, "3"), (503, "3"), (504, "3")])
async def test_a_refusal_of_the_coordinator_keeps_its_code_and_message(
    client: aiohttp.ClientSession, coordinator: ScriptedCoordinator, code: int, retry_after: str | None
) -> None:
    coordinator.script = lambda submit: Script(refused=Refused(submit.key, code, "64 wait already", 2.5))
    for stream in (True, False):
        async with client.post(CHAT, json=chat_body(stream=stream)) as response:
            error = await refused(response, 503 if code == 504 else code)
            assert response.headers.get("Retry-After") == retry_after
        assert error["message"] == "64 wait already"


async def test_when_one_choice_is_refused_the_others_are_cancelled(
    client: aiohttp.ClientSession, coordinator: ScriptedCoordinator
) -> None:
    def script(submit: Any) -> Script:
        return Script(refused=Refused(submit.key, 429, "full", 1)) if submit.sampling.choice == 1 else Script()

    coordinator.script = script
    async with client.post(CHAT, json=chat_body(n=3)) as response:
        await refused(response, 429)
    keys = {submit.key for submit in coordinator.submits if submit.sampling.choice != 1}
    # An earlier request may be cancelled only now; keys are given once.
    own = {submit.key for submit in coordinator.submits}
    await coordinator.until(lambda: coordinator.cancelled & own == keys)


async def test_while_the_group_does_not_serve_a_request_is_refused_with_the_reason(
    stand: Stand, coordinator: ScriptedCoordinator
) -> None:
    coordinator.script = continuing([5, 2])
    coordinator.announce(serving=False, reason="DrainRequested", message="draining", retry_after_s=4.2)
    await stand.until_answered(503)
    async with stand.client.post(CHAT, json=chat_body()) as response:
        error = await refused(response, 503)
    coordinator.announce()
    await stand.until_answered(200, "rev-1")
    assert "DrainRequested" in error["message"]
    assert response.headers["Retry-After"] == "5"


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer sk-test"}, {"Authorization": "Bearer é"}])
async def test_the_routers_privileges_need_the_group_token(
    client: aiohttp.ClientSession, coordinator: ScriptedCoordinator, headers: dict[str, str]
) -> None:
    async with client.post(CHAT, json=chat_body(bireme=extension()), headers=headers) as response:
        await refused(response, 401)
    async with client.post(CHAT, json=chat_body(stream=True), headers=headers | {Header.JOURNAL: "1"}) as response:
        await refused(response, 401)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"bireme": 5}, "bireme"),
        ({"bireme": {"request_id": "x"}}, "created"),
        ({"bireme": {"request_id": "a b", "created": 1, "seed": 1}}, "printable"),
        ({"bireme": extension({"prompt_token_ids": [1], "model_revision": "rev-1", "choices": [{"index": 1, "output_token_ids": []}]})}, "indices"),
        ({"bireme": extension({"prompt_token_ids": [-1], "model_revision": "rev-1", "choices": []})}, "prompt_token_ids"),
        ({"bireme": extension({"prompt_token_ids": [1], "model_revision": "rev-1", "choices": [{"index": 0, "output_token_ids": [10**9]}]})}, "output_token_ids"),
        ({"stream": False}, "stream: true"),
    ],
)  # fmt: skip
async def test_a_wrong_extension_is_refused(
    client: aiohttp.ClientSession, coordinator: ScriptedCoordinator, fields: dict[str, Any], words: str
) -> None:
    async with client.post(CHAT, json=chat_body(stream=True) | fields, headers=ROUTER) as response:
        assert words in (await refused(response, 400))["message"]


async def test_a_stream_of_another_checkpoint_is_not_resumed_here(
    client: aiohttp.ClientSession, coordinator: ScriptedCoordinator
) -> None:
    resume = {"prompt_token_ids": [5], "model_revision": "rev-0", "choices": []}
    async with client.post(CHAT, json=chat_body(stream=True, bireme=extension(resume)), headers=ROUTER) as response:
        error = await refused(response, 409)
    assert "'rev-0'" in error["message"]
    assert "'rev-1'" in error["message"]


async def test_a_request_id_that_is_no_word_is_refused(
    client: aiohttp.ClientSession, coordinator: ScriptedCoordinator
) -> None:
    async with client.post(CHAT, json=chat_body(), headers={Header.REQUEST_ID.value: "a b"}) as response:
        assert (await refused(response, 400))["param"] == "x-request-id"
