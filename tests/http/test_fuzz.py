"""Any body gets a right answer or a refusal that names the field; nothing gets a 500, and others are not disturbed."""

import json
import os
from typing import Any

import aiohttp
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bireme.wire.plan import unpack_ids
from bireme.wire.requests import Submit
from bireme_worker.http.schema import ChatBody, CompletionBody
from bireme_worker.http.unbuilt import NEUTRAL
from tests.http.scripted_coordinator import Script, ScriptedCoordinator, continuing
from tests.http.support import CHAT, COMPLETIONS, Stand

pytestmark = pytest.mark.asyncio(loop_scope="session")

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 5),
    st.sampled_from([-(2**63) - 1, -(2**31), 2**31, 2**64, 10**40, 49151, 49152]),
    st.floats(-3, 3),
    st.sampled_from([1e308, -1e308, 1e-320]),
    st.text(max_size=5),
)
JUNK = st.recursive(
    SCALARS, lambda part: st.lists(part, max_size=3) | st.dictionaries(st.text(max_size=4), part, max_size=3)
)
GOOD: dict[str, st.SearchStrategy[Any]] = {
    "max_tokens": st.integers(1, 8),
    "temperature": st.floats(0, 2),
    "top_p": st.floats(0, 1, exclude_min=True),
    "top_k": st.integers(-1, 2**70),
    "min_p": st.floats(0, 1),
    "frequency_penalty": st.floats(-2, 2),
    "presence_penalty": st.floats(-2, 2),
    "repetition_penalty": st.floats(0.1, 10),
    "seed": st.integers(),
    "stop": st.text(min_size=1, max_size=5) | st.lists(st.text(min_size=1, max_size=3), max_size=3),
    "stop_token_ids": st.lists(st.integers(0, 49151), max_size=3),
    "logit_bias": st.dictionaries(st.integers(0, 49151).map(str), st.floats(-100, 100), max_size=3),
    "stream": st.booleans(),
    "n": st.integers(1, 3),
    "priority": st.integers(-5, 5),
    "ignore_eos": st.booleans(),
    "min_tokens": st.integers(0, 1),
    "user": st.text(max_size=5),
    "response_format": st.sampled_from([{"type": "text"}, {"type": "json_object"}]),
    "guided_choice": st.lists(st.text(min_size=1, max_size=4), min_size=1, max_size=2),
}
CHAT_GOOD = GOOD | {
    "messages": st.lists(
        st.fixed_dictionaries(
            {"role": st.sampled_from(["system", "user", "assistant"]), "content": st.text(max_size=20)}
        ),
        min_size=1,
        max_size=3,
    ),
    "logprobs": st.booleans(),
    "tool_choice": st.sampled_from(["none", "auto"]),
    "chat_template_kwargs": st.dictionaries(st.text(max_size=5), st.integers(), max_size=2),
}
COMPLETION_GOOD = GOOD | {
    "prompt": st.text(min_size=1, max_size=20)
    | st.lists(st.integers(0, 49151), min_size=1, max_size=5)
    | st.lists(st.text(min_size=1, max_size=5), min_size=1, max_size=3),
    "logprobs": st.integers(0, 5),
    "echo": st.booleans(),
    "truncate_prompt_tokens": st.sampled_from([-1, 1, 3]),
}
CHAT_FIELDS = sorted({*ChatBody.model_fields, *NEUTRAL, "max_tokns", "bireme"})
COMPLETION_FIELDS = sorted({*CompletionBody.model_fields, *NEUTRAL, "max_tokns", "bireme"})


@st.composite
def bodies(draw: st.DrawFn, good: dict[str, st.SearchStrategy[Any]], fields: list[str], needed: str) -> dict[str, Any]:
    """A right body, with none to two of its fields spoiled."""
    chosen = {needed, *draw(st.sets(st.sampled_from(sorted(good)), max_size=6))}
    body = {"model": "smol", **{name: draw(good[name]) for name in sorted(chosen)}}
    for name in draw(st.lists(st.sampled_from(fields), max_size=2)):
        body[name] = draw(JUNK)
    return body


async def check(client: aiohttp.ClientSession, route: str, body: dict[str, Any], fields: list[str]) -> None:
    async with client.post(route, json=body) as response:
        data = await response.read()
    if response.status == 200:
        assert data.endswith(b"data: [DONE]\n\n") if body.get("stream") else json.loads(data)["choices"]
        return
    assert response.status in (400, 401, 404), data
    error = json.loads(data)["error"]
    names = {*fields, *body}
    if error["param"] is not None:
        assert error["param"].partition(".")[0] in names, error
    else:
        assert any(name in error["message"] for name in names if len(name) > 1), error


def tame(submit: Submit) -> Script:
    """Also the engine's side is checked: what reaches it is in bounds."""
    sampling = submit.sampling
    assert 0 <= sampling.seed < 2**64
    assert 0 <= sampling.top_k <= 49152
    assert all(0 <= token < 49152 for token in (*sampling.stop_ids, *sampling.logit_bias, *unpack_ids(submit.prompt)))
    assert 1 <= submit.max_tokens <= 512 - len(unpack_ids(submit.prompt))
    return continuing([5, 6, 2])(submit)


FUZZ = settings(
    max_examples=int(os.environ.get("BIREME_FUZZ_CASES", "500")) // 2,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


@FUZZ
@given(body=bodies(CHAT_GOOD, CHAT_FIELDS, "messages"))
async def test_any_chat_body_is_answered_or_refused_by_name(
    stand: Stand, coordinator: ScriptedCoordinator, body: dict[str, Any]
) -> None:
    coordinator.script = tame
    await check(stand.client, CHAT, body, CHAT_FIELDS)


@FUZZ
@given(body=bodies(COMPLETION_GOOD, COMPLETION_FIELDS, "prompt"))
async def test_any_completion_body_is_answered_or_refused_by_name(
    stand: Stand, coordinator: ScriptedCoordinator, body: dict[str, Any]
) -> None:
    coordinator.script = tame
    await check(stand.client, COMPLETIONS, body, COMPLETION_FIELDS)


@settings(FUZZ, max_examples=100)
@given(data=st.binary(max_size=60))
async def test_any_bytes_are_refused(stand: Stand, coordinator: ScriptedCoordinator, data: bytes) -> None:
    async with stand.client.post(CHAT, data=data) as response:
        assert response.status == 400
        assert (await response.json())["error"]["message"]
