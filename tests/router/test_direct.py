"""A stream that goes straight from the parser to the client is the same as one that is read piece by piece."""

import asyncio
from pathlib import Path

import msgspec
import pytest

from bireme_router import direct
from bireme_router.app import running
from bireme_router.caller import Caller
from bireme_router.job import CHAT, COMPLETIONS, Job, make_job, read_fields
from bireme_router.settings import Settings
from tests.support.router_process import Client, RouterProcess
from tests.support.stub_answers import Answer
from tests.support.stub_leader import Die, Raw, StubLeader


async def answers(directory: Path) -> list[bytes]:
    """What a client gets of a calm stream, a burst, a broken stream and a unary request."""
    leaders = [await StubLeader(index).start() for index in range(2)]
    RouterProcess(directory).write_routes(leaders)
    async with running(Settings(routes=directory / "routes.json", port=0)) as router:
        client = Client(await router.listen())
        following = asyncio.create_task(router.follow())
        await client.until_ready(2)
        got = []
        ids = {"x-request-id": "same"}
        burst = b"".join(Answer(CHAT, {"max_tokens": 400, "bireme": msgspec.to_builtins(extension())}).lines())
        for behaviour in (None, Raw(burst), Die(7)):
            for leader in leaders:
                leader.script.clear()
                if behaviour is not None:
                    leader.script.append(behaviour)
            reply = await client.ask(stream=True, headers=ids, max_tokens=400 if isinstance(behaviour, Raw) else 8)
            got.append(reply.body)
            await client.until_ready(2)
        for leader in leaders:
            leader.script.clear()
        got.append((await client.ask(headers=ids)).body)
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        await client.session.close()
    for leader in leaders:
        await leader.stop()
    return [body.replace(b"\r", b"") for body in got]


def extension() -> object:
    from bireme.wire.journal import Extension

    return Extension("same", 1, 7)


def without_time(bodies: list[bytes]) -> list[bytes]:
    import re

    return [re.sub(rb'"created":\d+', b"", body) for body in bodies]


async def test_both_ways_give_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert direct.POSSIBLE, "this aiohttp looks otherwise: streams cost twice as much, see bireme_router.direct"
    directly = await answers(tmp_path)
    assert all(b"[DONE]" in body for body in directly[:3])
    monkeypatch.setattr(direct, "POSSIBLE", False)
    assert without_time(await answers(tmp_path)) == without_time(directly)


def job(path: str, body: bytes) -> Job:
    fields = read_fields(body, None)
    return make_job(
        path, fields, body_bytes=len(body), request_id="r", headers={}, caller=Caller(), now=0.0, limit_s=1.0
    )


@pytest.mark.parametrize(
    ("prompt", "choices"),
    [('"one"', 2), ("[1, 2, 3]", 2), ("[]", 2), ('["a", "b", "c"]', 6), ("[[1], [2, 3]]", 4), (' [ "a"]', 2)],
)
def test_large_fields_are_sent_as_they_came_and_counted_right(prompt: str, choices: int) -> None:
    made = job(COMPLETIONS, f'{{"model":"m","n":2,"prompt":{prompt}}}'.encode())
    assert made.choices == choices
    assert prompt.strip().encode() in b"".join(made.body(None))


def test_a_prompts_beginning_is_known_by_its_own_bytes() -> None:
    text = "Call me Ishmael. " * 200
    short = job(CHAT, msgspec.json.encode({"model": "m", "messages": [{"role": "user", "content": text}]}))
    longer = [{"role": "user", "content": text}, {"role": "assistant", "content": "Aye."}]
    long = job(CHAT, msgspec.json.encode({"temperature": 0, "messages": longer, "model": "m"}))
    assert len(short.trail.prefix) >= 3
    assert long.trail.prefix[: len(short.trail.prefix)] == short.trail.prefix
