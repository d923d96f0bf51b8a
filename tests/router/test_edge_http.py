"""T9, T10, T12, T15: encodings, large bodies, slow clients, and requests that two readers could read in two ways."""

import asyncio
import gzip
import io
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.router.conftest import Fleet, Launch
from tests.support.router_process import CHAT, LIMIT_S, QUESTION
from tests.support.stub_leader import Raw, Refuse, Serve

BODY = json.dumps(QUESTION).encode()
POST = f"POST {CHAT} HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\n"
SMUGGLED = b"POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\n{}"
CHUNKED = b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)
MIB = 1024 * 1024


async def raw(fleet: Fleet, request: bytes, first_s: float = LIMIT_S) -> bytes:
    """Everything that the router answers until it closes, or until it has nothing more to say for a while.

    Its answer is waited for; to wait for what must not come there is ``first_s``.
    """
    place = urlsplit(fleet.client.url)
    reader, writer = await asyncio.open_connection(place.hostname, place.port)
    writer.write(request)
    answer = b""
    try:
        while data := await asyncio.wait_for(reader.read(65536), 1.0 if answer else first_s):
            answer += data
    except (TimeoutError, ConnectionResetError):
        pass
    writer.close()
    return answer


def head(*lines: str) -> bytes:
    return (POST + "".join(f"{line}\r\n" for line in lines) + "\r\n").encode()


AMBIGUOUS = {
    "length and chunks": head(f"Content-Length: {len(BODY)}", "Transfer-Encoding: chunked") + CHUNKED + SMUGGLED,
    "chunks and length": head("Transfer-Encoding: chunked", "Content-Length: 4") + CHUNKED + SMUGGLED,
    "two lengths": head(f"Content-Length: {len(BODY)}", "Content-Length: 3") + BODY + SMUGGLED,
    "two equal lengths": head(f"Content-Length: {len(BODY)}", f"Content-Length: {len(BODY)}") + BODY,
    "a list of lengths": head(f"Content-Length: {len(BODY)}, {len(BODY)}") + BODY,
    "a length with a sign": head(f"Content-Length: +{len(BODY)}") + BODY,
    "a folded header": head(f"Content-Length: {len(BODY)}", "X-One: a", " b") + BODY,
    "a folded coding": head("Transfer-Encoding:", " chunked") + CHUNKED,
    "a space before the colon": head("Transfer-Encoding : chunked") + CHUNKED,
    "an unknown coding": head("Transfer-Encoding: xchunked") + CHUNKED,
    "chunked is not the last coding": head("Transfer-Encoding: chunked, identity") + CHUNKED,
    "chunked twice": head("Transfer-Encoding: chunked", "Transfer-Encoding: chunked") + CHUNKED,
    "a chunk size in other digits": head("Transfer-Encoding: chunked") + b"0x%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY),
    "a negative chunk size": head("Transfer-Encoding: chunked") + b"-%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY),
    "a chunk longer than it says": head("Transfer-Encoding: chunked") + b"%x\r\n%bzz\r\n0\r\n\r\n" % (len(BODY), BODY),
    "a bare CR in a header": head("X-One: a\rTransfer-Encoding: chunked", f"Content-Length: {len(BODY)}") + BODY,
    "a NUL in a header": head("X-One: a\0b", f"Content-Length: {len(BODY)}") + BODY,
}  # fmt: skip


async def test_t15_a_request_that_can_be_read_in_two_ways_is_refused_and_nothing_goes_upstream(
    launch: Launch,
) -> None:
    fleet = await launch(1)
    answers = await asyncio.gather(*(raw(fleet, request) for request in AMBIGUOUS.values()))
    for name, answer in zip(AMBIGUOUS, answers, strict=True):
        assert re.match(rb"HTTP/1\.[01] 400 ", answer), (name, answer[:300])
        assert len(re.findall(rb"HTTP/1\.[01] ", answer)) == 1, f"{name}: what follows on this connection is not read"
    assert fleet.received == 0


async def test_t15_hop_by_hop_and_forged_headers_reach_no_worker(launch: Launch) -> None:
    fleet = await launch(1)
    request = head(
        f"Content-Length: {len(BODY)}",
        "Connection: close, X-Secret-Hop",
        "X-Secret-Hop: 1",
        "Keep-Alive: timeout=9",
        "TE: trailers",
        "Proxy-Authorization: Basic x",
        "X-Bireme-Attempt: 9",
        "X-Bireme-Journal: 0",
        "Authorization: Bearer sk-forged",
        "X-Kept: yes",
    )
    assert (await raw(fleet, request + BODY)).startswith(b"HTTP/1.1 200 ")
    headers = fleet.leaders[0].received[0].headers
    assert headers["x-kept"] == "yes"
    assert headers["x-bireme-attempt"] == "1"
    assert headers["x-bireme-journal"] == "1"
    assert "sk-forged" not in str(headers)
    assert not headers.keys() & {"x-secret-hop", "keep-alive", "te", "proxy-authorization"}


async def test_t9_a_worker_is_never_asked_for_a_coding_and_a_compressed_body_is_read(launch: Launch) -> None:
    fleet = await launch(1)
    reply = await fleet.client.ask(headers={"accept-encoding": "gzip, deflate, br"})
    assert "content-encoding" not in reply.headers
    assert int(reply.headers["content-length"]) == len(reply.body)
    async with fleet.client.session.post(
        fleet.client.url + CHAT,
        data=gzip.compress(BODY),
        headers={"content-encoding": "gzip", "content-type": "application/json"},
    ) as response:
        assert response.status == 200
    plain, packed = fleet.leaders[0].received
    assert "accept-encoding" not in plain.headers
    assert "content-encoding" not in packed.headers
    assert packed.json["messages"] == QUESTION["messages"]


async def test_t9_a_body_with_trailers_is_read_and_one_that_breaks_off_is_not_sent(launch: Launch) -> None:
    fleet = await launch(1)
    trailers = b"%x\r\n%b\r\n0\r\nX-Trailer: 1\r\n\r\n" % (len(BODY), BODY)
    answer = await raw(fleet, head("Transfer-Encoding: chunked", "Trailer: X-Trailer") + trailers)
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert "x-trailer" not in fleet.leaders[0].received[0].headers
    await raw(fleet, head(f"Content-Length: {len(BODY) + 10}") + BODY, 1.0)
    assert fleet.received == 1


async def test_t9_head_has_no_body_and_a_refusal_keeps_its_length(launch: Launch) -> None:
    fleet = await launch(1)
    async with fleet.client.session.head(fleet.client.url + "/livez") as response:
        assert (response.status, await response.read()) == (200, b"")
    fleet.script.append(Refuse(422))
    reply = await fleet.client.ask()
    assert int(reply.headers["content-length"]) == len(reply.body)


def padded(size: int) -> bytes:
    """A request of exactly so many bytes."""
    question = {**QUESTION, "messages": [{"role": "user", "content": ""}]}
    empty = len(json.dumps(question).encode())
    question["messages"] = [{"role": "user", "content": "x" * (size - empty)}]
    return json.dumps(question).encode()


async def post(fleet: Fleet, data: object) -> tuple[int, bytes]:
    async with fleet.client.session.post(fleet.client.url + CHAT, data=data) as response:
        return response.status, await response.read()


@pytest.mark.parametrize("size", [128 * 1024, 4 * MIB, 16 * MIB])
async def test_t10_a_large_body_below_the_limit_arrives_whole(launch: Launch, size: int) -> None:
    fleet = await launch(1, "--max-body-bytes", str(16 * MIB))
    assert (await post(fleet, io.BytesIO(padded(size))))[0] == 200
    assert fleet.leaders[0].received[0].json["messages"] == json.loads(padded(size))["messages"]


async def test_t10_a_body_over_the_limit_is_refused_before_it_is_sent(launch: Launch) -> None:
    fleet = await launch(1, "--max-body-bytes", "100000")
    answer = await raw(fleet, head("Content-Length: 100001", "Expect: 100-continue"))
    assert answer.startswith(b"HTTP/1.1 413 "), answer
    assert b"100 Continue" not in answer
    answer = await raw(fleet, head("Content-Length: 17179869184") + b"x")
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert (await raw(fleet, head("Transfer-Encoding: chunked") + b"1ffff\r\n" + b"x" * 131071)).startswith(
        b"HTTP/1.1 413 "
    )
    bomb = gzip.compress(b"x" * 10 * MIB)
    assert len(bomb) < 100_000
    request = head(f"Content-Length: {len(bomb)}", "Content-Encoding: gzip") + bomb
    assert (await raw(fleet, request)).startswith(b"HTTP/1.1 413 ")
    assert fleet.received == 0


async def test_t10_a_slow_upload_does_not_hold_up_others(launch: Launch) -> None:
    fleet = await launch(1)
    arrived = asyncio.Event()

    async def slowly() -> AsyncIterator[bytes]:
        yield BODY[:10]
        await arrived.wait()
        yield BODY[10:]

    slow = asyncio.create_task(post(fleet, slowly()))
    for _ in range(5):
        assert (await fleet.client.ask()).status == 200
    assert fleet.received == 5
    arrived.set()
    assert (await slow)[0] == 200


def rss_kb(pid: int) -> int:
    return next(
        int(line.split()[1])
        for line in Path(f"/proc/{pid}/status").read_text().splitlines()
        if line.startswith("VmRSS")
    )


async def test_t12_a_client_that_does_not_read_costs_at_most_64_kb(launch: Launch) -> None:
    streams, event = 120, b'data: {"choices":[{"index":0,"delta":{"content":"' + b"x" * 200 + b'"}}]}\n\n'
    fleet = await launch(1)
    place, process = urlsplit(fleet.client.url), fleet.router.process
    assert process is not None
    request = head(f"Content-Length: {len(BODY) + 16}") + BODY[:-1] + b', "stream": true}'
    for _ in range(20):
        await fleet.client.ask(stream=True)
    before = rss_kb(process.pid)
    fleet.script.extend([Raw(event * 40_000, 64 * 1024)] * streams)
    clients = [await asyncio.open_connection(place.hostname, place.port, limit=2) for _ in range(streams)]
    for _, writer in clients:
        assert isinstance(writer.transport, asyncio.ReadTransport)
        writer.transport.pause_reading()
        writer.write(request)
    series = 'bireme_router_in_flight{group="0"}'
    await fleet.client.until_metric(series, streams)
    highest, calm = before, 0
    async with asyncio.timeout(60):
        while calm < 10:  # until the burst stands still against the full sockets
            await asyncio.sleep(0.1)
            now = rss_kb(process.pid)
            calm, highest = (0, now) if now > highest else (calm + 1, highest)
    assert await fleet.client.metric(series) == streams
    each = (highest - before) / streams
    assert each <= 64, f"{each:.1f} KB for each stream"
    for _, writer in clients:
        writer.transport.abort()
    await fleet.until_quiet()


async def test_t12_a_slow_client_gets_every_byte(launch: Launch) -> None:
    fleet = await launch(1)
    event = b'data: {"choices":[{"index":0,"delta":{"content":"' + b"x" * 200 + b'"}}]}\n\n'
    content = event * 4000 + b"data: [DONE]\n\n"
    fleet.script.extend([Raw(content, 64 * 1024), Serve()])
    got = b""
    async with fleet.client.session.post(fleet.client.url + CHAT, json={**QUESTION, "stream": True}) as response:
        while data := await response.content.read(8192):
            got += data
            if len(got) < 200_000:
                await asyncio.sleep(0.01)
    assert got == content
