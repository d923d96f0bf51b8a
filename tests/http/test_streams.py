"""What a plain client sees: OpenAI's bytes, and nothing of ours."""

import json
from typing import Any

import aiohttp
import pytest

from bireme.names import Header
from bireme.wire.plan import Logprobs, unpack_ids
from bireme_worker.text.tokenizer import TextModel
from tests.http.scripted_coordinator import Script, ScriptedCoordinator, by_ones, continuing
from tests.http.support import CHAT, COMPLETIONS, HELLO, chat_body

pytestmark = pytest.mark.asyncio(loop_scope="session")

END = 2


def ids_of(text: TextModel, words: str) -> list[int]:
    return text.encode(words, add_special_tokens=False)


def events(data: bytes) -> list[Any]:
    parts = data.decode().split("\n\n")
    assert parts.pop() == ""
    assert parts.pop() == "data: [DONE]"
    return [json.loads(part.removeprefix("data: ")) for part in parts]


def content(chunks: list[Any], choice: int = 0) -> str:
    parts = [c for chunk in chunks for c in chunk["choices"] if c["index"] == choice]
    return "".join(part.get("text") or part.get("delta", {}).get("content") or "" for part in parts)


async def test_a_chat_stream_is_byte_for_byte_openais(
    client: aiohttp.ClientSession, coordinator: ScriptedCoordinator, text: TextModel
) -> None:
    coordinator.script = continuing([*ids_of(text, "Hi 😀!"), END])
    body = chat_body(stream=True, stream_options={"include_usage": True}, max_tokens=20)
    async with client.post(CHAT, json=body, headers={Header.REQUEST_ID.value: "abc"}) as response:
        data = await response.read()
    created = json.loads(data.split(b"\n")[0].removeprefix(b"data: "))["created"]
    head = (
        f'data: {{"id":"chatcmpl-abc","object":"chat.completion.chunk","created":{created},"model":"smol",'
        '"system_fingerprint":"rev-1","choices":['
    )
    middle = '},"logprobs":null,"finish_reason":'
    assert data.decode() == "".join(
        [
            head + '{"index":0,"delta":{"role":"assistant","content":""' + middle + 'null}],"usage":null}\n\n',
            head + '{"index":0,"delta":{"content":"Hi"' + middle + 'null}],"usage":null}\n\n',
            head + '{"index":0,"delta":{"content":" "' + middle + 'null}],"usage":null}\n\n',
            head + '{"index":0,"delta":{"content":"😀"' + middle + 'null}],"usage":null}\n\n',
            head + '{"index":0,"delta":{"content":"!"' + middle + 'null}],"usage":null}\n\n',
            head + '{"index":0,"delta":{' + middle + '"stop"}],"usage":null}\n\n',
            head + '],"usage":{"prompt_tokens":31,"completion_tokens":5,"total_tokens":36,'
            '"prompt_tokens_details":{"cached_tokens":0}}}\n\n',
            "data: [DONE]\n\n",
        ]
    )
    assert response.headers["Content-Type"] == "text/event-stream; charset=utf-8"
    assert response.headers[Header.REQUEST_ID] == "abc"
    assert response.headers[Header.MODEL_REVISION] == "rev-1"


async def test_a_whole_answer_has_text_usage_and_finish_reason(
    client: aiohttp.ClientSession, coordinator: ScriptedCoordinator, text: TextModel
) -> None:
    ids = [*ids_of(text, "Paris, naturellement. 東京"), END]
    coordinator.script = lambda _: Script(by_ones(ids), "stop", cached=16)
    async with client.post(CHAT, json=chat_body()) as response:
        answer = await response.json()
    assert answer["object"] == "chat.completion"
    assert answer["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Paris, naturellement. 東京", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]
    assert answer["usage"] == {
        "prompt_tokens": 31,
        "completion_tokens": len(ids),
        "total_tokens": 31 + len(ids),
        "prompt_tokens_details": {"cached_tokens": 16},
    }


async def test_a_request_reaches_the_engine_with_everything_that_the_client_asked_for(
    client: aiohttp.ClientSession, coordinator: ScriptedCoordinator, text: TextModel
) -> None:
    coordinator.script = continuing([5, END])
    fields = {
        "temperature": 0.5, "top_p": 0.9, "top_k": 40, "min_p": 0.05, "frequency_penalty": 0.1, "presence_penalty": 0.2,
        "repetition_penalty": 1.1, "seed": -1, "stop_token_ids": [7], "logit_bias": {"11": -100}, "min_tokens": 2,
        "max_completion_tokens": 9, "priority": -3, "logprobs": True, "top_logprobs": 3,
    }  # fmt: skip
    async with client.post(CHAT, json=chat_body(**fields), headers={Header.REQUEST_ID.value: "me"}) as response:
        assert response.status == 200
    (submit,) = coordinator.submits
    assert (submit.request_id, submit.max_tokens, submit.priority, submit.journalled) == ("me", 9, -3, False)
    sampling = submit.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0.5, 0.9, 40, 0.05)
    assert (sampling.frequency_penalty, sampling.presence_penalty, sampling.repetition_penalty) == (0.1, 0.2, 1.1)
    assert (sampling.seed, sampling.stop_ids, sampling.logit_bias) == (2**64 - 1, (2, 7), {11: -100.0})
    assert (sampling.min_tokens, sampling.logprobs, sampling.choice) == (2, 3, 0)
    prompt = text.decode(unpack_ids(submit.prompt), skip_special_tokens=False)
    assert prompt.endswith("<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n")


async def test_without_max_tokens_the_rest_of_the_context_may_be_used(
    client: aiohttp.ClientSession, coordinator: ScriptedCoordinator
) -> None:
    coordinator.script = continuing([5, END])
    async with client.post(
        COMPLETIONS, json={"model": "org/smol", "prompt": [5, 6, 7], "ignore_eos": True}
    ) as response:
        assert response.status == 200
    (submit,) = coordinator.submits
    assert (submit.max_tokens, submit.sampling.stop_ids) == (coordinator.context - 3, ())


async def test_two_requests_without_a_seed_are_drawn_differently(
    client: aiohttp.ClientSession, coordinator: ScriptedCoordinator
) -> None:
    coordinator.script = continuing([5, END])
    for _ in range(2):
        async with client.post(CHAT, json=chat_body()):
            pass
    first, second = coordinator.submits
    assert first.sampling.seed != second.sampling.seed


@pytest.mark.parametrize("prompt", ["Hello there", ["Hello there"], [19556, 665], [[19556, 665]]])
async def test_a_completion_takes_a_text_or_ids(
    client: aiohttp.ClientSession, coordinator: ScriptedCoordinator, text: TextModel, prompt: object
) -> None:
    coordinator.script = continuing([*ids_of(text, " friend"), END])
    async with client.post(COMPLETIONS, json={"model": "smol", "prompt": prompt, "max_tokens": 5}) as response:
        answer = await response.json()
    assert list(unpack_ids(coordinator.submits[0].prompt)) == ids_of(text, "Hello there")
    assert answer["choices"] == [{"text": " friend", "index": 0, "logprobs": None, "finish_reason": "stop"}]
    assert answer["id"].startswith("cmpl-")


async def test_a_stop_string_over_token_borders_never_leaks_and_frees_the_engine(
    client: aiohttp.ClientSession, coordinator: ScriptedCoordinator, text: TextModel
) -> None:
    ids = ids_of(text, "one two three four five six")
    coordinator.script = lambda _: Script(by_ones(ids))  # the engine would go on for ever
    body = {"model": "smol", "prompt": "count", "stop": ["ee fo"], "stream": True}
    async with client.post(COMPLETIONS, json=body) as response:
        chunks = events(await response.read())
    assert content(chunks) == "one two thr"
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    (submit,) = coordinator.submits
    await coordinator.until(lambda: submit.key in coordinator.cancelled)


async def test_streaming_and_not_streaming_give_the_same_text_and_usage(
    client: aiohttp.ClientSession, coordinator: ScriptedCoordinator, text: TextModel
) -> None:
    coordinator.script = continuing([*ids_of(text, "día 👩‍🚀 STOP here"), END], group=3)
    body = chat_body(stop="STOP", stream=True, stream_options={"include_usage": True})
    async with client.post(CHAT, json=body) as response:
        chunks = events(await response.read())
    async with client.post(CHAT, json=chat_body(stop="STOP")) as response:
        whole = await response.json()
    assert content(chunks) == whole["choices"][0]["message"]["content"] == "día 👩‍🚀 "
    assert chunks[-1]["usage"] == whole["usage"]


async def test_several_choices_are_drawn_by_their_index(
    client: aiohttp.ClientSession, coordinator: ScriptedCoordinator, text: TextModel
) -> None:
    words = {0: "zero", 1: "one one", 2: "two two two"}
    coordinator.script = lambda submit: Script(by_ones([*ids_of(text, words[submit.sampling.choice]), END]), "stop")
    async with client.post(CHAT, json=chat_body(n=3, stream=True)) as response:
        chunks = events(await response.read())
    assert [content(chunks, choice) for choice in range(3)] == list(words.values())
    assert [c["choices"][0]["delta"].get("role") for c in chunks[:3]] == ["assistant"] * 3
    assert {submit.sampling.seed for submit in coordinator.submits} == {coordinator.submits[0].sampling.seed}
    async with client.post(CHAT, json=chat_body(n=3)) as response:
        whole = await response.json()
    assert [choice["message"]["content"] for choice in whole["choices"]] == list(words.values())


async def test_chat_logprobs_name_every_token_with_its_bytes(
    client: aiohttp.ClientSession, coordinator: ScriptedCoordinator, text: TextModel
) -> None:
    ids = ids_of(text, "a 😀")
    coordinator.script = continuing([*ids, END])
    async with client.post(CHAT, json=chat_body(logprobs=True, top_logprobs=2, stream=True)) as response:
        chunks = events(await response.read())
    entries = [e for c in chunks for e in ((c["choices"][0]["logprobs"] or {}).get("content") or [])]
    assert b"".join(bytes(entry["bytes"]) for entry in entries).decode() == "a 😀"
    assert [len(entry["top_logprobs"]) for entry in entries] == [2] * len(ids)
    assert entries[0]["logprob"] == pytest.approx(-0.5 - ids[0] / 1e6)


async def test_completion_logprobs_have_offsets_into_the_text(
    client: aiohttp.ClientSession, coordinator: ScriptedCoordinator, text: TextModel
) -> None:
    coordinator.script = continuing([*ids_of(text, " red, green, blue"), END], group=2)
    async with client.post(COMPLETIONS, json={"model": "smol", "prompt": "x", "logprobs": 0}) as response:
        (choice,) = (await response.json())["choices"]
    tokens, offsets = choice["logprobs"]["tokens"], choice["logprobs"]["text_offset"]
    assert "".join(tokens) == choice["text"]
    assert [choice["text"][o : o + len(t)] for t, o in zip(tokens, offsets, strict=True)] == tokens
    own = [{token: value} for token, value in zip(tokens, choice["logprobs"]["token_logprobs"], strict=True)]
    assert choice["logprobs"]["top_logprobs"] == own  # the drawn token is told beside the likeliest


async def test_minus_infinity_is_written_as_a_number(
    client: aiohttp.ClientSession, coordinator: ScriptedCoordinator
) -> None:
    coordinator.logprobs = lambda token, top: Logprobs(float("-inf"), ((token, float("-inf")),))
    coordinator.script = continuing([5, END])
    async with client.post(COMPLETIONS, json={"model": "smol", "prompt": "x", "logprobs": 1}) as response:
        (choice,) = (await response.json())["choices"]
    assert choice["logprobs"]["token_logprobs"] == [-9999.0]
    assert list(choice["logprobs"]["top_logprobs"][0].values()) == [-9999.0]


async def test_an_engine_failure_mid_stream_is_an_error_event_without_done(
    client: aiohttp.ClientSession, coordinator: ScriptedCoordinator, text: TextModel
) -> None:
    coordinator.script = lambda _: Script([ids_of(text, "so"), []], "error", "row 3 had logits that are not finite")
    async with client.post(CHAT, json=chat_body(stream=True)) as response:
        data = await response.read()
    assert b"[DONE]" not in data
    last = json.loads(data.decode().split("\n\n")[-2].removeprefix("data: "))
    assert last["error"]["type"] == "server_error"
    assert "not finite" in last["error"]["message"]


async def test_an_engine_failure_before_the_first_token_is_a_500_that_is_not_called_unprocessed(
    client: aiohttp.ClientSession, coordinator: ScriptedCoordinator
) -> None:
    coordinator.script = lambda _: Script([], "error", "row 3 had logits that are not finite")
    for stream in (True, False):
        async with client.post(CHAT, json=chat_body(stream=stream)) as response:
            assert response.status == 500
            assert Header.UNPROCESSED not in response.headers


async def test_models_lists_every_name(client: aiohttp.ClientSession, coordinator: ScriptedCoordinator) -> None:
    async with client.get("/v1/models") as response:
        models = (await response.json())["data"]
    assert [model["id"] for model in models] == ["smol", "smol-alias", "org/smol"]
    assert models[0]["max_model_len"] == coordinator.context
    async with client.get("/v1/models/org/smol") as response:
        assert (await response.json())["root"] == "smol"


async def test_the_tokenizer_can_be_asked(client: aiohttp.ClientSession, text: TextModel) -> None:
    async with client.post("/tokenize", json={"model": "smol", "prompt": "Hello 😀"}) as response:
        tokens = (await response.json())["tokens"]
    assert tokens == ids_of(text, "Hello 😀")
    async with client.post("/detokenize", json={"model": "smol", "tokens": tokens}) as response:
        assert (await response.json())["prompt"] == "Hello 😀"
    async with client.post("/tokenize", json={"model": "smol", "messages": HELLO}) as response:
        assert (await response.json())["count"] == 31


async def test_text_parts_and_null_fields_are_taken_as_openais_clients_send_them(
    client: aiohttp.ClientSession, coordinator: ScriptedCoordinator, text: TextModel
) -> None:
    coordinator.script = continuing([5, END])
    messages = [
        {"role": "developer", "content": "Be brief."},
        {"role": "assistant", "content": "Hi", "refusal": None, "tool_calls": None},
        {"role": "user", "content": [{"type": "text", "text": "One"}, {"type": "text", "text": "Two"}]},
    ]
    body: dict[str, Any] = {"model": "smol", "messages": messages, "tools": [], "tool_choice": "none"}
    body |= {"max_tokens": None, "user": "me"}
    body |= {"skip_special_tokens": True, "length_penalty": 1.0, "use_beam_search": False, "bad_words": []}
    async with client.post(CHAT, json=body) as response:
        assert response.status == 200, await response.text()
    prompt = text.decode(unpack_ids(coordinator.submits[0].prompt), skip_special_tokens=False)
    assert prompt.startswith("<|im_start|>system\nBe brief.<|im_end|>")
    assert "<|im_start|>user\nOne\nTwo<|im_end|>" in prompt
