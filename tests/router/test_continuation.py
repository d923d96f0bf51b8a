"""T3: a stream that breaks goes on elsewhere, and its client sees one answer, byte for byte."""

import asyncio
from typing import Any

import msgspec
import pytest

from tests.router.conftest import Fleet, Launch
from tests.support.router_process import CHAT, COMPLETIONS, QUESTION, Reply
from tests.support.stub_answers import Answer
from tests.support.stub_leader import Die, Fail, HandOver, Raw, Silent

USAGE = {"stream_options": {"include_usage": True}}


def whole_answer(fleet: Fleet, path: str) -> Answer:
    """The undisturbed answer to the first attempt."""
    received = [one for leader in fleet.leaders for one in leader.received]
    return Answer(path, min(received, key=lambda one: int(one.headers["x-bireme-attempt"])).json)


def forget(fleet: Fleet) -> None:
    for leader in fleet.leaders:
        leader.received.clear()


def assert_untouched(fleet: Fleet, path: str, reply: Reply) -> None:
    assert reply.status == 200
    assert reply.body == whole_answer(fleet, path).plain()


@pytest.mark.parametrize(("path", "extra"), [(CHAT, {"n": 2, **USAGE}), (COMPLETIONS, {"logprobs": 1})])
async def test_t3_a_cut_after_every_line_is_invisible_to_the_client(
    launch: Launch, path: str, extra: dict[str, Any]
) -> None:
    fleet = await launch(2, "--retry-attempts", "5")
    lines = len(Answer(path, {"model": "m", "seed": 11, **extra}).lines())
    for cut in range(lines):
        fleet.script.extend([Die(cut, clean=cut % 2 == 0)])
        reply = await fleet.client.ask(path, stream=True, **extra)
        assert_untouched(fleet, path, reply)
        forget(fleet)
        await fleet.client.until_ready(2)
    await fleet.until_quiet()


async def test_t3_a_unary_answer_survives_a_break_too(launch: Launch) -> None:
    fleet = await launch(2)
    for broken in (0, 1, 7):
        fleet.script.append(Die(broken))
        reply = await fleet.client.ask(n=2)
        assert msgspec.json.decode(reply.body) == msgspec.json.decode(whole_answer(fleet, CHAT).whole())
        assert fleet.received == 2
        forget(fleet)
        await fleet.client.until_ready(2)


async def test_a_handover_goes_on_at_once_on_another_group(launch: Launch) -> None:
    fleet = await launch(2)
    fleet.script.append(HandOver(6))
    reply = await fleet.client.ask(stream=True)
    assert_untouched(fleet, CHAT, reply)
    assert [len(leader.received) for leader in fleet.leaders] == [1, 1]
    await fleet.client.until_metric("bireme_router_resumes_total", 1)


async def test_the_only_group_is_waited_for_and_goes_on_under_its_next_epoch(launch: Launch) -> None:
    fleet = await launch(1)
    leader = fleet.leaders[0]
    leader.script.append(Silent(8))  # a broken connection might be known before what the leader says, and tried again
    asking = asyncio.create_task(fleet.client.ask(stream=True))
    await fleet.until_received()
    await leader.change(state="Recovering", reason="RankLost", epoch=0)
    await fleet.client.until_metric("bireme_router_waiting", 1)
    assert await fleet.client.status("/readyz") == 503
    await leader.change(state="Serving", epoch=2)
    assert_untouched(fleet, CHAT, await asking)
    assert leader.received[1].json["bireme"]["resume"]["model_revision"] == "rev-1"


async def test_a_stream_waits_for_its_own_model_revision_and_then_ends_with_an_error(launch: Launch) -> None:
    fleet = await launch(2)
    fleet.script.append(Silent(8))  # given up a second after its epoch has ended, when all is known of the others
    asking = asyncio.create_task(fleet.client.ask(stream=True, headers={"x-request-timeout": "4"}))
    await fleet.until_received()
    for leader in fleet.leaders:
        await leader.change(model_revision="rev-2", epoch=2)
    reply = await asking
    assert reply.status == 200
    assert b"[DONE]" not in reply.body
    assert b'"error"' in reply.body.splitlines()[-2]
    assert fleet.received == 1


async def test_nothing_delivered_is_repeated_with_the_same_seed_whatever_the_revision(launch: Launch) -> None:
    fleet = await launch(2)
    fleet.script.append(Die(3))  # the role was delivered, no id was
    reply = await fleet.client.ask(stream=True)
    assert_untouched(fleet, CHAT, reply)
    bodies = [one.body for leader in fleet.leaders for one in leader.received]
    assert len(bodies) == 2
    assert bodies[0] == bodies[1]


async def test_a_large_request_comes_whole_and_is_sent_again_the_same(launch: Launch) -> None:
    fleet = await launch(2)
    fleet.script.append(Die(3))
    asked: dict[str, Any] = {
        "messages": [{"role": "user", "content": "grün " * 100_000}],
        "tools": [{"type": "function"}],
        "top_p": 0.5,
    }
    assert (await fleet.client.ask(stream=True, **asked)).status == 200
    first, second = (one for leader in fleet.leaders for one in leader.received)
    assert {name: first.json[name] for name in asked} == asked
    assert first.body == second.body


async def test_a_request_that_kills_every_group_is_given_up_after_its_attempts(launch: Launch) -> None:
    fleet = await launch(2, "--retry-attempts", "3")
    fleet.script.extend([Die(1)] * 5)
    reply = await fleet.client.ask()
    assert reply.status == 502
    assert b"3 times" in reply.body
    assert fleet.received == 3


async def test_progress_makes_the_attempts_count_anew(launch: Launch) -> None:
    fleet = await launch(2, "--retry-attempts", "2")
    fleet.script.extend([Die(7), Die(4), Die(4), Die(4)])
    reply = await fleet.client.ask(stream=True, max_tokens=16, seed=1)
    assert_untouched(fleet, CHAT, reply)


async def test_t8_truncation_is_an_error_event_and_never_the_end_marker(launch: Launch) -> None:
    fleet = await launch(1, "--retry-attempts", "1")
    plain = b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'
    for script in (Raw(plain), Die(8, clean=True), Die(8), Fail(8), HandOver(8), Raw(b'data: {"cho')):
        fleet.leaders[0].script.append(script)
        reply = await fleet.client.ask(stream=True)
        assert b"[DONE]" not in reply.body
        assert b'"error"' in reply.body
        await fleet.client.until_ready(1)


async def test_t8_an_engines_error_is_a_status_code_while_nothing_was_sent(launch: Launch) -> None:
    fleet = await launch(1)
    fleet.leaders[0].script.extend([Fail(0), Fail(8)])
    for _ in range(2):
        reply = await fleet.client.ask()
        assert reply.status == 500
        assert b"logits" in reply.body
    assert fleet.received == 2


@pytest.mark.parametrize("step", [1, 5])
async def test_t2_an_answer_in_tiny_pieces_reaches_the_client_whole(launch: Launch, step: int) -> None:
    fleet = await launch(1)
    answer = Answer(CHAT, {"model": "m", "seed": 11, "n": 2})
    fleet.leaders[0].script.append(Raw(b"".join(answer.lines()), step))
    reply = await fleet.client.ask(stream=True, n=2)
    assert reply.body == answer.plain()


async def test_t6_silence_has_its_own_limits_and_the_request_moves(launch: Launch) -> None:
    fleet = await launch(2, "--first-token-timeout", "0.6", "--idle-timeout", "0.3")
    for silence in (Silent(headers=False), Silent(0), Silent(2), Silent(7)):
        fleet.script.extend([silence])
        reply = await fleet.client.ask(stream=True)
        assert_untouched(fleet, CHAT, reply)
        forget(fleet)
        await fleet.client.until_ready(2)
    log = fleet.router.log.read_text()
    assert "no token for 0.6 s" in log
    assert "no further token for 0.3 s" in log


async def test_a_slow_client_is_no_silent_worker(launch: Launch) -> None:
    fleet = await launch(1, "--idle-timeout", "4", "--retry-attempts", "1")  # the worker here may be held up, too
    answer = Answer(CHAT, {"model": "m", "seed": 0, "max_tokens": 8})
    held = b": keep-alive " + b"x" * 4000 + b"\n"
    fleet.script.append(Raw(b"".join(answer.lines()[:6]) + (held + b"\n") * 2000 + b"".join(answer.lines()[6:])))
    host, port = fleet.router.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=1024)
    body = msgspec.json.encode({**QUESTION, "stream": True})
    writer.write(b"POST %b HTTP/1.1\r\nhost: h\r\ncontent-length: %d\r\n\r\n%b" % (CHAT.encode(), len(body), body))
    await asyncio.sleep(5)  # longer than the limit, while eight megabytes wait behind a full socket
    received = b""
    while not received.endswith(b"0\r\n\r\n"):
        received += await reader.read(1 << 20)
    writer.close()
    assert b"[DONE]" in received
    assert received.count(b": keep-alive ") == 2000
