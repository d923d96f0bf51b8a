"""Journal and resume: a stream that is cut anywhere and continued is byte for byte the stream that was not."""

import asyncio
import json
from typing import Any

import aiohttp
import pytest

from bireme.wire.journal import Emitted, Handover, Opened, read_journal
from bireme.wire.plan import unpack_ids
from bireme.wire.requests import Submit
from bireme_worker.text.tokenizer import TextModel
from tests.http.scripted_coordinator import Script, ScriptedCoordinator, continuing
from tests.http.support import CHAT, COMPLETIONS, ROUTER, Reader, Stand, chat_body, extension, read_lines

pytestmark = pytest.mark.asyncio(loop_scope="session")

END = 2
USAGE = {"stream": True, "stream_options": {"include_usage": True}}


async def lines_of(client: aiohttp.ClientSession, route: str, body: dict[str, Any], resume: Any = None) -> list[bytes]:
    async with client.post(route, json=body | {"bireme": extension(resume)}, headers=ROUTER) as response:
        lines = await read_lines(response)
        assert response.status == 200, lines
        return lines


def data_lines(lines: list[bytes]) -> list[bytes]:
    return [line for line in lines if line.startswith(b"data:")]


async def check_every_cut(client: aiohttp.ClientSession, route: str, body: dict[str, Any]) -> list[bytes]:
    """Cut the stream behind each line, resume as a router would, and compare what the client got in all."""
    whole = await lines_of(client, route, body)
    for cut in range(len(whole)):
        reader = Reader()
        for line in whole[:cut]:
            reader.line(line)
        if any(b'"choices":[]' in line for line in reader.delivered):
            continue  # after the usage only [DONE] is missing, which a router writes itself
        rest = await lines_of(client, route, body, reader.resume())
        assert reader.delivered + data_lines(rest) == data_lines(whole), f"cut before line {cut}: {whole[cut]!r}"
    return whole


@pytest.mark.parametrize(
    ("words", "fields"),
    [
        ("Zażółć 👩‍🚀 gęślą 😀😀 東京!", {}),
        ("count: one two three four five", {"stop": ["ee fo"]}),
        ("almost: one two thr ee", {"stop": ["three", "ee!"]}),
        ("a 😀 STOP in an emoji 👩‍🚀", {"stop": ["🚀"], "logprobs": True, "top_logprobs": 2}),
        ("cut short by the limit thr", {"stop": ["three"], "max_tokens": 6}),
        ("ends in a half 😀", {"max_tokens": 5}),
        ("", {}),
    ],
)
async def test_a_chat_stream_that_is_cut_anywhere_is_continued_exactly(
    client: aiohttp.ClientSession,
    coordinator: ScriptedCoordinator,
    text: TextModel,
    words: str,
    fields: dict[str, Any],
) -> None:
    coordinator.script = continuing([*text.encode(words, add_special_tokens=False), END])
    await check_every_cut(client, CHAT, chat_body(**USAGE, **fields))


async def test_a_completion_stream_with_offsets_is_continued_exactly(
    client: aiohttp.ClientSession, coordinator: ScriptedCoordinator, text: TextModel
) -> None:
    coordinator.script = continuing([*text.encode(" red 😀 green, STOP blue", add_special_tokens=False), END])
    body = {"model": "smol", "prompt": "x", "logprobs": 1, "stop": "STOP", **USAGE}
    await check_every_cut(client, COMPLETIONS, body)


async def test_several_choices_are_continued_each_from_its_own_place(
    client: aiohttp.ClientSession, coordinator: ScriptedCoordinator, text: TextModel
) -> None:
    words = {0: "zero", 1: "eins zwei 😀", 2: "one two three four"}

    def script(submit: Submit) -> Script:
        return continuing([*text.encode(words[submit.sampling.choice], add_special_tokens=False), END])(submit)

    coordinator.script = script
    await check_every_cut(client, CHAT, chat_body(n=3, stop="ee f", **USAGE))


async def test_a_template_that_renders_another_date_meanwhile_changes_nothing(
    client: aiohttp.ClientSession, coordinator: ScriptedCoordinator, text: TextModel
) -> None:
    """The prompt's ids are the journal's: what the template would render by now is not even looked at."""
    coordinator.script = continuing([*text.encode("Today is a fine day.", add_special_tokens=False), END])
    today = chat_body(**USAGE, return_token_ids=True, messages=[{"role": "user", "content": "It is 28 November."}])
    whole = await lines_of(client, CHAT, today)
    reader = Reader()
    for line in whole[:4]:
        reader.line(line)
    tomorrow = today | {"messages": [{"role": "user", "content": "It is 29 November, a day with more tokens."}]}
    rest = await lines_of(client, CHAT, tomorrow, reader.resume())
    assert reader.delivered + data_lines(rest) == data_lines(whole)
    first, second = (unpack_ids(submit.prompt) for submit in coordinator.submits[-2:])
    assert first == second


async def test_ids_that_come_in_other_groups_after_a_resume_give_the_same_text(
    client: aiohttp.ClientSession, coordinator: ScriptedCoordinator, text: TextModel
) -> None:
    ids = [*text.encode("grouped 👩‍🚀 differently, ee fo never", add_special_tokens=False), END]
    body = chat_body(**USAGE, stop=["ee fo"])

    def words_of(lines: list[bytes]) -> str:
        chunks = [json.loads(line[6:]) for line in lines if line.startswith(b"data: {")]
        return "".join(choice["delta"].get("content", "") for chunk in chunks for choice in chunk["choices"])

    for group in (2, 3, 5):
        coordinator.script = continuing(ids, group=group)
        whole = await lines_of(client, CHAT, body)
        for cut in range(len(whole) - 4):
            reader = Reader()
            for line in whole[:cut]:
                reader.line(line)
            coordinator.script = continuing(ids, group=7 - group)
            rest = await lines_of(client, CHAT, body, reader.resume())
            assert words_of(reader.delivered + rest) == "grouped 👩‍🚀 differently, "


async def test_the_journal_tells_prompt_and_ids_before_their_data(
    client: aiohttp.ClientSession, coordinator: ScriptedCoordinator, text: TextModel
) -> None:
    ids = text.encode("Hi 😀", add_special_tokens=False)
    coordinator.script = continuing([*ids, END])
    lines = [line for line in await lines_of(client, CHAT, chat_body(stream=True)) if line.strip()]
    kinds = ["journal" if line.startswith(b": bireme ") else "data" for line in lines]
    entries = [read_journal(line) for line in lines if line.startswith(b": bireme ")]
    (submit,) = coordinator.submits
    assert entries[0] == Opened(1, list(unpack_ids(submit.prompt)), "rev-1", 0)
    emitted = [entry for entry in entries[1:] if isinstance(entry, Emitted)]
    assert [token for entry in emitted for token in entry.token_ids] == [*ids, END]
    assert emitted[-1] == Emitted(0, [END], "stop")
    assert kinds[:4] == ["journal", "data", "journal", "data"]
    assert submit.journalled
    assert submit.sampling.seed == 7


async def test_without_the_journal_the_bytes_are_the_same_less_the_journal(
    client: aiohttp.ClientSession, coordinator: ScriptedCoordinator, text: TextModel
) -> None:
    coordinator.script = continuing([*text.encode("Hi 😀", add_special_tokens=False), END])
    with_journal = await lines_of(client, CHAT, chat_body(**USAGE))
    headers = {"Authorization": ROUTER["authorization"]}
    async with client.post(CHAT, json=chat_body(**USAGE) | {"bireme": extension()}, headers=headers) as response:
        plain = await read_lines(response)
    assert [line for line in with_journal if not line.startswith(b": bireme ")] == plain


async def test_a_resumed_request_gives_the_engine_its_outputs_and_only_the_choices_that_run(
    client: aiohttp.ClientSession, coordinator: ScriptedCoordinator
) -> None:
    coordinator.script = continuing([10, 11, 12, END])
    resume = {
        "prompt_token_ids": [5, 6],
        "model_revision": "rev-1",
        "choices": [
            {"index": 0, "output_token_ids": [10, END], "finish_reason": "stop"},
            {"index": 1, "output_token_ids": [10, 11]},
        ],
    }
    await lines_of(client, CHAT, chat_body(n=2, **USAGE), resume)
    (submit,) = coordinator.submits
    assert list(unpack_ids(submit.prompt)) == [5, 6]
    assert list(unpack_ids(submit.outputs)) == [10, 11]
    assert submit.sampling.choice == 1


@pytest.mark.parametrize("finish", ["stop", "length"])
async def test_outputs_that_already_end_are_finished_without_the_engine(
    client: aiohttp.ClientSession, coordinator: ScriptedCoordinator, finish: str
) -> None:
    outputs = [10, END] if finish == "stop" else [10, 11]
    resume = {
        "prompt_token_ids": [5],
        "model_revision": "rev-1",
        "choices": [{"index": 0, "output_token_ids": outputs}],
    }
    data = data_lines(await lines_of(client, CHAT, chat_body(max_tokens=2, **USAGE), resume))
    assert f'"finish_reason":"{finish}"'.encode() in data[0]
    assert b'"completion_tokens":2' in data[1]
    assert data[2:] == [b"data: [DONE]\n"]
    assert coordinator.submits == []


async def test_a_handover_ends_the_stream_without_done(
    client: aiohttp.ClientSession, coordinator: ScriptedCoordinator, text: TextModel
) -> None:
    ids = text.encode("one two", add_special_tokens=False)
    coordinator.script = lambda _: Script([ids, []], "handover", message="rank 1 of stage 1 was lost")
    lines = await lines_of(client, CHAT, chat_body(stream=True))
    assert read_journal(lines[-1]) == Handover("rank 1 of stage 1 was lost")
    assert not any(b"DONE" in line or b'finish_reason":"' in line for line in lines)


async def test_a_handover_before_the_first_token_is_a_503_that_can_be_sent_again(
    client: aiohttp.ClientSession, coordinator: ScriptedCoordinator
) -> None:
    coordinator.script = lambda _: Script([], "handover", message="rank 1 of stage 1 was lost")
    async with client.post(CHAT, json=chat_body(stream=True), headers=ROUTER) as response:
        assert response.status == 503
        assert response.headers["x-bireme-unprocessed"] == "1"
        assert "Retry-After" in response.headers


async def test_a_lost_coordinator_hands_journalled_streams_over_and_tells_the_others(
    stand: Stand, coordinator: ScriptedCoordinator, text: TextModel
) -> None:
    ids = text.encode("one two", add_special_tokens=False)
    coordinator.script = lambda _: Script([ids])

    async def lose(headers: dict[str, str]) -> list[bytes]:
        async with stand.client.post(CHAT, json=chat_body(stream=True), headers=headers) as response:
            assert response.status == 200
            coordinator.lose_everyone()
            lines = await read_lines(response)
        await stand.until_serving()
        return lines

    handed = read_journal((await lose(ROUTER))[-1])
    assert isinstance(handed, Handover)
    assert "coordinator lost" in handed.reason
    plain = await lose({})
    assert b'data: {"error":{"message":"coordinator lost' in plain[-2]
    assert not any(b"DONE" in line for line in plain)


async def test_a_whole_answer_that_loses_its_coordinator_can_be_sent_again(
    stand: Stand, coordinator: ScriptedCoordinator, text: TextModel
) -> None:
    coordinator.script = lambda _: Script([text.encode("one two", add_special_tokens=False)])
    asking = asyncio.ensure_future(stand.client.post(CHAT, json=chat_body()))
    await coordinator.until(lambda: bool(coordinator.submits))
    coordinator.lose_everyone()
    async with await asking as response:
        assert response.status == 503
        assert response.headers["x-bireme-unprocessed"] == "1"
    await stand.until_serving()


async def test_a_reload_between_resume_and_first_token_is_a_conflict(
    stand: Stand, coordinator: ScriptedCoordinator
) -> None:
    def reloaded(_: Submit) -> Script:
        coordinator.revision = "rev-2"
        coordinator.announce()
        return Script([[5], [END]], "stop")

    coordinator.script = reloaded
    resume = {"prompt_token_ids": [5], "model_revision": "rev-1", "choices": [{"index": 0, "output_token_ids": [9]}]}
    body = chat_body(stream=True, bireme=extension(resume))
    async with stand.client.post(CHAT, json=body, headers=ROUTER) as response:
        answer = await response.json()
    coordinator.revision = "rev-1"
    coordinator.announce()
    coordinator.script = continuing([5, END])
    await stand.until_answered(200, "rev-1")
    assert response.status == 409
    assert "rev-2" in answer["error"]["message"]
