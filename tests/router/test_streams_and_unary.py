"""What a client sees when nothing goes wrong: the worker's own bytes, or the worker's own object."""

from typing import Any

import msgspec
import pytest
from openai import AsyncOpenAI

from tests.router.conftest import Launch
from tests.support.router_process import CHAT, COMPLETIONS, QUESTION
from tests.support.stub_answers import Answer


def reference(path: str, received: bytes) -> Answer:
    return Answer(path, msgspec.json.decode(received))


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_a_stream_is_the_workers_bytes_without_the_journal(launch: Launch, path: str) -> None:
    fleet = await launch()
    reply = await fleet.client.ask(path, stream=True)
    assert reply.status == 200
    assert reply.body == reference(path, fleet.leaders[0].received[0].body).plain()
    assert reply.headers["content-type"].startswith("text/event-stream")


async def test_usage_reaches_only_a_client_that_asked_for_it(launch: Launch) -> None:
    fleet = await launch()
    without = await fleet.client.ask(stream=True)
    with_usage = await fleet.client.ask(stream=True, stream_options={"include_usage": True})
    assert b"usage" not in without.body
    assert with_usage.body.count(b'"usage":{') == 1


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_a_unary_answer_equals_the_workers_own_object(launch: Launch, path: str) -> None:
    fleet = await launch()
    wishes: list[dict[str, Any]] = [{}, {"n": 3}, {"logprobs": True}, {"max_tokens": 1}]
    for extra in wishes:
        reply = await fleet.client.ask(path, **extra)
        received = fleet.leaders[0].received[-1].body
        assert msgspec.json.decode(reply.body) == msgspec.json.decode(reference(path, received).whole()), extra
        assert reply.headers["content-type"] == "application/json"


async def test_the_official_client_streams_and_asks_at_once(launch: Launch) -> None:
    fleet = await launch(2)
    async with AsyncOpenAI(base_url=f"{fleet.router.url}/v1", api_key="any") as client:
        whole = await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}], seed=11)
        chunks = await client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "x"}], seed=11, stream=True
        )
        text = "".join([chunk.choices[0].delta.content or "" async for chunk in chunks])
        models = [model async for model in client.models.list()]
        alias = await client.models.retrieve("alias")
    assert text == whole.choices[0].message.content
    assert [model.id for model in models] == ["m", "alias"]
    context = fleet.leaders[0].document().limits.context
    assert {one.model_extra["max_model_len"] for one in (*models, alias) if one.model_extra} == {context}


async def test_a_workers_request_carries_the_routers_part_and_nothing_forged(launch: Launch) -> None:
    fleet = await launch()
    forged = {
        "x-bireme-attempt": "9",
        "x-bireme-journal": "0",
        "x-request-id": "mine-1",
        "authorization": "Bearer client",
        "connection": "keep-alive, x-secret-hop",
        "x-secret-hop": "1",
        "traceparent": "00-ab-cd-01",
    }
    reply = await fleet.client.ask(headers=forged)
    received = fleet.leaders[0].received[0]
    assert received.headers["x-bireme-attempt"] == "1"
    assert received.headers["x-bireme-journal"] == "1"
    assert received.headers["traceparent"] == "00-ab-cd-01"
    assert "x-secret-hop" not in received.headers
    assert received.json["bireme"]["request_id"] == "mine-1"
    assert received.json["stream"] is True
    assert reply.headers["x-request-id"] == "mine-1"


async def test_an_unsound_request_id_is_replaced(launch: Launch) -> None:
    fleet = await launch()
    reply = await fleet.client.ask(headers={"x-request-id": "a b/<script>"})
    assert reply.headers["x-request-id"].isalnum()


async def test_what_the_client_sent_reaches_the_worker_unchanged(launch: Launch) -> None:
    fleet = await launch()
    extra: dict[str, Any] = {
        "temperature": 0.7,
        "logit_bias": {"5": -1.5},
        "metadata": {"ü": [None, True, 12345678901234567]},
    }
    await fleet.client.ask(stream=True, **extra)
    sent = fleet.leaders[0].received[0].json
    sent.pop("bireme")
    assert sent == {**QUESTION, **extra, "stream": True}
