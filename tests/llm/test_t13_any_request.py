"""T13: whatever a request asks for, it is answered rightly or refused by name, and the engine goes on serving others.

Real processes: supervisor, coordinator, rank and HTTP. Requests come several at a time while somebody else's stream of
requests must get the same ids again and again. BIREME_FUZZ_CASES=5000 (`make fuzz`) draws as many as the acceptance
asks for; the default suits CI.
"""

import asyncio
import json
import os
import re
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bireme.names import Env, Port
from bireme_worker import LLM
from bireme_worker.http.schema import ChatBody, CompletionBody
from tests.checkpoints.tiny import tiny_llama
from tests.support.adapters import ALL_LINEAR, write_adapter
from tests.support.any_request import (
    CHAT,
    COMPLETION,
    DRAWN_ELSEWHERE,
    FIELDS,
    VOCABULARY,
    chats,
    completions,
    detokenizing,
    embedding,
    tokenizing,
)
from tests.support.byte_model import make_byte_model
from tests.support.right_answer import events, judge_whole, of_whole, summed

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(1800)]

AT_ONCE = 8
CASES = int(os.environ.get("BIREME_FUZZ_CASES", "120"))
ROUTES = {
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
    "tokenize": "/tokenize",
    "detokenize": "/detokenize",
    "embeddings": "/v1/embeddings",
}
KINDS = {  # the more fields, the more often
    "chat": chats(),
    "completions": completions(),
    "chat ": chats(),
    "completions ": completions(),
    "tokenize": tokenizing(),
    "detokenize": detokenizing(),
    "embeddings": embedding("smol", VOCABULARY, 64),
}
REQUESTS = st.sampled_from(sorted(KINDS)).flatmap(lambda kind: st.tuples(st.just(kind.strip()), KINDS[kind]))
CONTEXT = 512
PATIENCE_S = 120
TRIES = 4
"""A stream and the whole must be equal once: batch mates may decide a tie in the last bit of float32."""
BYSTANDER = {"model": "smol", "prompt": "The sea", "max_tokens": 12, "seed": 5, "ignore_eos": True}


class Running:
    """One engine with little room, so that requests are preempted, and what the bystander got of it."""

    def __init__(self, folder: Path) -> None:
        torch.set_num_threads(1)
        model = make_byte_model(folder / "smol")
        write_adapter(folder / "pirate", tiny_llama(vocab_size=VOCABULARY), ALL_LINEAR, rank=4, seed=3)
        self.logs = folder / "logs"
        self.llm = LLM(
            model,
            adapters={"pirate": folder / "pirate"},
            speculation=3,
            max_model_length=CONTEXT,
            max_batched_tokens=64,
            max_running_requests=16,
            kv_cache_bytes=800_000,
            settings={Env.HTTP_PROCESSES: "1"},
            logs=self.logs,
        )
        self.answers: list[Any] = []
        self.statuses: Counter[int] = Counter()

    @property
    def rank_starts(self) -> int:
        return len(re.findall(r"rank \d+.* process \d+", (self.logs / "stage-0.log").read_text()))


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    one = Running(tmp_path_factory.mktemp("fuzz"))
    with one.llm:
        yield one


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(running: Running) -> AsyncIterator[aiohttp.ClientSession]:
    base = f"http://{running.llm.host}:{int(Port.HTTP)}"
    async with aiohttp.ClientSession(base, timeout=aiohttp.ClientTimeout(PATIENCE_S)) as client:
        await until_open(client)
        bystander = asyncio.create_task(stand_by(client, running))
        yield client
        bystander.cancel()
        await asyncio.wait([bystander])
    print(running.statuses)
    assert running.statuses[200] > CASES // 4, "bodies are too often spoiled to test the engine"
    assert running.statuses[400] > CASES // 8
    assert running.answers
    assert all(answer == running.answers[0] for answer in running.answers)
    assert running.rank_starts == 1, "the rank was started again"


async def until_open(client: aiohttp.ClientSession) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                async with client.get("/v1/models") as answer:
                    if answer.status == 200:
                        return
            except aiohttp.ClientConnectionError:
                await asyncio.sleep(0.05)


async def stand_by(client: aiohttp.ClientSession, running: Running) -> None:
    while True:
        async with client.post(ROUTES["completions"], json=BYSTANDER) as answer:
            running.answers.append((await answer.json())["choices"])


async def test_every_field_of_the_schema_is_drawn() -> None:
    assert {*CHAT, *DRAWN_ELSEWHERE} >= {*ChatBody.model_fields}
    assert {*COMPLETION, *DRAWN_ELSEWHERE} >= {*CompletionBody.model_fields}


@settings(
    max_examples=CASES // AT_ONCE,
    deadline=None,
    derandomize="BIREME_FUZZ_CASES" not in os.environ,
    suppress_health_check=list(HealthCheck),
)
@given(batch=st.lists(REQUESTS, min_size=AT_ONCE, max_size=AT_ONCE))
async def test_t13_any_request_is_answered_rightly_or_refused_by_name(
    client: aiohttp.ClientSession, running: Running, batch: list[tuple[str, dict[str, Any]]]
) -> None:
    before = len(running.answers)
    running.statuses.update(await asyncio.gather(*(check(client, route, body) for route, body in batch)))
    async with asyncio.timeout(PATIENCE_S):
        while len(running.answers) == before:
            await asyncio.sleep(0.001)


async def check(client: aiohttp.ClientSession, route: str, body: dict[str, Any]) -> int:
    """Returns the status."""
    status, data = await post(client, route, body)
    if status != 200:
        refused(route, body, status, data)
    elif route not in ("chat", "completions"):
        await text_and_ids(client, body, json.loads(data))
    elif not body.get("stream"):
        judge_whole(body, json.loads(data))
    else:
        await check_stream(client, route, body, data)
    return status


async def check_stream(client: aiohttp.ClientSession, route: str, body: dict[str, Any], data: bytes) -> None:
    """A stream says what the whole says."""
    plain = {name: value for name, value in body.items() if name not in ("stream", "stream_options")}
    for _ in range(TRIES):
        status, whole = await post(client, route, plain)
        assert status == 200, whole
        answer = json.loads(whole)
        judge_whole(plain, answer)
        sums = summed(events(data), len(answer["choices"]))
        if sums == of_whole(answer) or not (body.get("seed") is not None or body.get("temperature") == 0):
            return
        _, data = await post(client, route, body)
    raise AssertionError(f"the stream gives {sums}, the whole {of_whole(answer)}")


async def text_and_ids(client: aiohttp.ClientSession, body: dict[str, Any], answer: dict[str, Any]) -> None:
    """The tokenizer's routes are each other's inverse, as far as ids make whole characters."""
    if "tokens" not in answer:
        assert isinstance(answer["prompt"], str)
        return
    assert answer["count"] == len(answer["tokens"])
    _, data = await post(client, "detokenize", {"model": "smol", "tokens": answer["tokens"]})
    text = json.loads(data)["prompt"]
    assert text == body["prompt"] if body.get("prompt") is not None else text.endswith("assistant: ")


async def post(client: aiohttp.ClientSession, route: str, body: dict[str, Any]) -> tuple[int, bytes]:
    async with client.post(ROUTES[route], json=body) as answer:
        return answer.status, await answer.read()


def refused(route: str, body: dict[str, Any], status: int, data: bytes) -> None:
    assert status in (400, 401, 404), (status, data)
    error = json.loads(data)["error"]
    fields = {*body, *FIELDS[route]}
    if error["param"] is not None:
        assert error["param"].partition(".")[0] in fields, error
    else:
        assert any(name in error["message"] for name in fields if len(name) > 1), error
