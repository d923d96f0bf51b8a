"""The official client, as people use it."""

import asyncio
from collections.abc import AsyncIterator

import openai
import pytest
import pytest_asyncio
from openai.types.chat import ChatCompletionMessageParam

from bireme_worker.text.tokenizer import TextModel
from tests.http.scripted_coordinator import Script, ScriptedCoordinator, continuing
from tests.http.support import Stand

pytestmark = pytest.mark.asyncio(loop_scope="session")

HELLO: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Hello"}]
WORDS = "The capital of France is Paris 🗼."


@pytest_asyncio.fixture(loop_scope="session")
async def api(stand: Stand) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{stand.process.base}/v1", api_key="sk-unused", max_retries=0) as api:
        yield api


@pytest.fixture
def speaking(coordinator: ScriptedCoordinator, text: TextModel) -> ScriptedCoordinator:
    coordinator.script = continuing([*text.encode(WORDS, add_special_tokens=False), 2])
    return coordinator


async def test_chat_with_and_without_stream(api: openai.AsyncOpenAI, speaking: ScriptedCoordinator) -> None:
    whole = await api.chat.completions.create(model="smol", messages=HELLO, temperature=0)
    assert whole.choices[0].message.content == WORDS
    assert whole.choices[0].finish_reason == "stop"
    assert whole.usage is not None
    async with await api.chat.completions.create(
        model="smol", messages=HELLO, stream=True, stream_options={"include_usage": True}
    ) as stream:
        chunks = [chunk async for chunk in stream]
    parts = [chunk.choices[0].delta.content or "" for chunk in chunks[:-1]]
    assert "".join(parts) == WORDS
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].usage == whole.usage
    assert len({chunk.id for chunk in chunks}) == 1


async def test_an_answer_can_be_sent_back_as_history(api: openai.AsyncOpenAI, speaking: ScriptedCoordinator) -> None:
    first = await api.chat.completions.create(model="smol", messages=HELLO)
    again: list[ChatCompletionMessageParam] = [*HELLO, first.choices[0].message, *HELLO]  # type: ignore[list-item]
    second = await api.chat.completions.create(model="smol", messages=again)
    assert second.choices[0].message.content == WORDS


async def test_completions_with_and_without_stream(api: openai.AsyncOpenAI, speaking: ScriptedCoordinator) -> None:
    whole = await api.completions.create(model="smol", prompt="Paris?", logprobs=2, max_tokens=50)
    assert whole.choices[0].text == WORDS
    assert whole.choices[0].logprobs is not None
    async with await api.completions.create(model="smol", prompt="Paris?", stream=True, max_tokens=50) as stream:
        chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].text for chunk in chunks) == WORDS
    assert chunks[-1].choices[0].finish_reason == "stop"


async def test_logprobs_are_parsed(api: openai.AsyncOpenAI, speaking: ScriptedCoordinator) -> None:
    whole = await api.chat.completions.create(model="smol", messages=HELLO, logprobs=True, top_logprobs=2)
    assert whole.choices[0].logprobs is not None
    assert whole.choices[0].logprobs.content is not None
    assert "".join(bytes(entry.bytes or []).decode(errors="ignore") for entry in whole.choices[0].logprobs.content)


async def test_models_are_listed(api: openai.AsyncOpenAI, speaking: ScriptedCoordinator) -> None:
    assert [model.id async for model in api.models.list()] == ["smol", "smol-alias", "org/smol"]
    assert (await api.models.retrieve("smol")).owned_by == "bireme"


async def test_errors_are_raised_as_the_clients_own(api: openai.AsyncOpenAI, coordinator: ScriptedCoordinator) -> None:
    with pytest.raises(openai.BadRequestError, match="max_tokens") as bad:
        await api.chat.completions.create(model="smol", messages=HELLO, max_tokens=0)
    assert bad.value.param == "max_tokens"
    with pytest.raises(openai.NotFoundError):
        await api.chat.completions.create(model="none", messages=HELLO)
    coordinator.script = lambda _: Script([[5], []], "error", "the device failed")
    async with await api.chat.completions.create(model="smol", messages=HELLO, stream=True) as stream:
        with pytest.raises(openai.APIError, match="the device failed"):
            async for _ in stream:
                pass


async def test_the_synchronous_client(stand: Stand, speaking: ScriptedCoordinator) -> None:
    def ask() -> tuple[str | None, str]:
        with openai.OpenAI(base_url=f"{stand.process.base}/v1", api_key="sk-unused", max_retries=0) as api:
            whole = api.chat.completions.create(model="smol", messages=HELLO)
            with api.chat.completions.create(model="smol", messages=HELLO, stream=True) as stream:
                return whole.choices[0].message.content, "".join(c.choices[0].delta.content or "" for c in stream)

    assert await asyncio.to_thread(ask) == (WORDS, WORDS)


async def test_token_ids_are_told_to_whoever_asks(
    api: openai.AsyncOpenAI, speaking: ScriptedCoordinator, text: TextModel
) -> None:
    ids = [*text.encode(WORDS, add_special_tokens=False), 2]
    asked = {"return_token_ids": True}
    whole = await api.chat.completions.create(model="smol", messages=HELLO, extra_body=asked)
    told = whole.model_dump()
    assert told["choices"][0]["token_ids"] == ids
    async with await api.chat.completions.create(model="smol", messages=HELLO, stream=True, extra_body=asked) as stream:
        chunks = [chunk.model_dump() async for chunk in stream]
    assert chunks[0]["prompt_token_ids"] == told["prompt_token_ids"]
    assert all("prompt_token_ids" not in chunk for chunk in chunks[1:])
    assert [token for chunk in chunks for token in chunk["choices"][0].get("token_ids", [])] == ids
    async with await api.completions.create(model="smol", prompt="Paris?", stream=True, extra_body=asked) as parts:
        pieces = [chunk.model_dump() async for chunk in parts]
    assert pieces[0]["prompt_token_ids"] == text.encode("Paris?", add_special_tokens=True)
    assert [token for chunk in pieces for token in chunk["choices"][0].get("token_ids", [])] == ids
