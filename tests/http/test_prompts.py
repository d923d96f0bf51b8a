"""Several prompts in a request, their ends and scores, and the best of several draws, from a real engine."""

import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from tests.http.in_process import make_checkpoint, post, remove, whole_group
from tests.http.support import COMPLETIONS

pytestmark = pytest.mark.asyncio(loop_scope="module")

LONG = list(range(100, 190))


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="bireme-prompts-"))
    yield path
    remove(path)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(folder: Path) -> AsyncIterator[aiohttp.ClientSession]:
    """Its chunks are shorter than the long prompt."""
    async with whole_group(make_checkpoint(folder / "model"), folder, budget=32) as (client, _):
        yield client


async def complete(client: aiohttp.ClientSession, **fields: Any) -> dict[str, Any]:
    body = {"max_tokens": 4, "temperature": 1.0, "seed": 3, "ignore_eos": True, **fields}
    status, answer = await post(client, COMPLETIONS, body)
    assert status == 200, answer
    whole: dict[str, Any] = answer
    return whole


async def test_each_of_several_prompts_is_answered_as_if_it_came_alone(client: aiohttp.ClientSession) -> None:
    together = await complete(client, prompt=["One", [5, 6, 7]], n=2)
    alone = [await complete(client, prompt=prompt, n=2) for prompt in ("One", [5, 6, 7])]
    assert [one["index"] for one in together["choices"]] == [0, 1, 2, 3]
    assert [one["text"] for one in together["choices"]] == [c["text"] for one in alone for c in one["choices"]]
    assert together["usage"]["prompt_tokens"] == sum(one["usage"]["prompt_tokens"] for one in alone)


async def test_a_prompt_is_scored_alike_in_chunks_and_whole_cold_and_cached(
    client: aiohttp.ClientSession, folder: Path
) -> None:
    first, again = [await complete(client, prompt=LONG, prompt_logprobs=2) for _ in range(2)]
    (folder / "other").mkdir()
    async with whole_group(folder / "model", folder / "other", budget=128) as (other, _):
        whole = await complete(other, prompt=LONG, prompt_logprobs=2)
    scores = [answer["choices"][0]["prompt_logprobs"] for answer in (first, again, whole)]
    assert [len(one) for one in scores] == [len(LONG)] * 3
    assert scores[0][0] is None
    for token, *entries in list(zip(LONG, *scores, strict=True))[1:]:
        values = [entry[str(token)]["logprob"] for entry in entries]
        assert values == pytest.approx([values[0]] * 3, abs=1e-3)
        assert all(max(e["logprob"] for e in entry.values()) < 0 for entry in entries)


async def test_echo_with_logprobs_scores_prompt_and_output(client: aiohttp.ClientSession) -> None:
    choice = (await complete(client, prompt=LONG, echo=True, logprobs=1))["choices"][0]
    logprobs = choice["logprobs"]
    assert len(logprobs["tokens"]) == len(LONG) + 4
    assert logprobs["token_logprobs"][0] is None
    assert all(value is not None and value < 0 for value in logprobs["token_logprobs"][1:])
    assert choice["text"].startswith("".join(logprobs["tokens"][: len(LONG)]))


async def test_echo_and_prompt_logprobs_each_tell_as_many_of_the_likeliest_as_they_were_asked_for(
    client: aiohttp.ClientSession,
) -> None:
    for scored, echoed in ((4, 1), (0, 3)):
        fields = {"prompt": [33, 34, 35], "echo": True, "logprobs": echoed, "prompt_logprobs": scored}
        choice = (await complete(client, **fields))["choices"][0]
        assert all(echoed <= len(one) <= echoed + 1 for one in choice["logprobs"]["top_logprobs"][1:])
        assert [max(scored, 1) <= len(one) <= scored + 1 for one in choice["prompt_logprobs"][1:]] == [True] * 2
        assert choice["logprobs"]["tokens"][:3] == list(choice["text"][:3])


async def test_an_echoed_prompt_that_was_cut_is_the_part_that_was_kept(client: aiohttp.ClientSession) -> None:
    whole = await complete(client, prompt=LONG, echo=True, logprobs=0, truncate_prompt_tokens=5)
    short = await complete(client, prompt=LONG[-5:], echo=True, logprobs=0)
    assert whole["choices"] == short["choices"]
    assert whole["choices"][0]["logprobs"]["text_offset"][0] == 0


async def test_best_of_with_echo_and_logprobs_compares_outputs_and_tells_all(client: aiohttp.ClientSession) -> None:
    plain = await complete(client, prompt=[5, 6, 7], best_of=3, n=2)
    told = await complete(client, prompt=[5, 6, 7], best_of=3, n=2, echo=True, logprobs=2)
    for short, long in zip(plain["choices"], told["choices"], strict=True):
        assert long["text"].endswith(short["text"])
        assert len(long["logprobs"]["tokens"]) == 3 + 4
        assert long["logprobs"]["token_logprobs"][0] is None


async def test_offsets_count_characters_over_token_borders_and_stop_strings(client: aiohttp.ClientSession) -> None:
    whole = (await complete(client, prompt="One", logprobs=0, max_tokens=12))["choices"][0]
    stop = whole["text"][4:7]
    cut = (await complete(client, prompt="One", logprobs=0, max_tokens=12, stop=stop))["choices"][0]
    assert (cut["text"], cut["finish_reason"]) == (whole["text"][: whole["text"].index(stop)], "stop")
    count = len(cut["logprobs"]["tokens"])
    assert cut["logprobs"]["text_offset"] == whole["logprobs"]["text_offset"][:count]
    assert cut["logprobs"]["text_offset"][-1] <= len(cut["text"]) + len(stop)


async def test_best_of_sends_the_likeliest_of_its_draws(client: aiohttp.ClientSession) -> None:
    drawn = (await complete(client, prompt="One", n=4, logprobs=0))["choices"]
    best = await complete(client, prompt="One", best_of=4, n=2)
    means = sorted(drawn, key=lambda one: -sum(one["logprobs"]["token_logprobs"]) / 4)
    assert [one["text"] for one in best["choices"]] == [one["text"] for one in means[:2]]
    assert best["usage"]["completion_tokens"] == 16
    assert best["choices"][0]["logprobs"] is None


async def test_a_prompt_may_be_cut_at_its_beginning(client: aiohttp.ClientSession) -> None:
    cut = await complete(client, prompt=LONG, truncate_prompt_tokens=7)
    assert cut["usage"]["prompt_tokens"] == 7
    assert cut["choices"][0]["text"] == (await complete(client, prompt=LONG[-7:]))["choices"][0]["text"]
