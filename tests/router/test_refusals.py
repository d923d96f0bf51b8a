"""T4, T5, T7, T11 and the router's own refusals: who is asked again, who is told, and with which code."""

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator

import aiohttp
import msgspec

from tests.router.conftest import Launch
from tests.support.router_process import CHAT, QUESTION
from tests.support.stub_leader import Refuse, ResetAfterBody, Silent


async def test_t4_a_retry_is_the_same_bytes_with_the_same_id_and_a_higher_count(launch: Launch) -> None:
    fleet = await launch(2)
    fleet.script.extend([ResetAfterBody()])
    await fleet.client.ask(stream=True)
    first, again = sorted(
        (one for leader in fleet.leaders for one in leader.received), key=lambda one: one.headers["x-bireme-attempt"]
    )
    assert [len(leader.received) for leader in fleet.leaders] == [1, 1]
    assert again.body == first.body
    assert again.headers["x-request-id"] == first.headers["x-request-id"]
    assert (first.headers["x-bireme-attempt"], again.headers["x-bireme-attempt"]) == ("1", "2")


async def test_t5_an_answer_that_is_no_proof_of_idleness_reaches_the_client_once(launch: Launch) -> None:
    fleet = await launch(2)
    for sent, code in enumerate((400, 404, 409, 413, 422, 500, 503), 1):
        fleet.script.append(Refuse(code))
        reply = await fleet.client.ask()
        assert reply.status == code
        assert json.loads(reply.body)["error"]["message"] == f"stub {code}"
        assert fleet.received == sent
    assert (await fleet.client.page("/readyz")).startswith("2 of 2")


async def test_t5_a_full_group_sends_the_request_elsewhere(launch: Launch) -> None:
    fleet = await launch(2)
    fleet.leaders[0].script = deque([Refuse(429, unprocessed=True, retry_after="1")] * 9)
    for _ in range(6):
        assert (await fleet.client.ask()).status == 200
    assert (await fleet.client.page("/readyz")).startswith("2 of 2")


async def test_t5_when_every_group_is_full_the_client_is_told_so(launch: Launch) -> None:
    fleet = await launch(2)
    fleet.script.extend([Refuse(429, unprocessed=True, retry_after="7")] * 2)
    reply = await fleet.client.ask()
    assert reply.status == 429
    assert reply.headers["retry-after"] == "7"
    assert fleet.received == 2


async def test_t7_a_group_that_goes_away_and_comes_back_costs_no_request(launch: Launch) -> None:
    fleet = await launch(2)
    gone = fleet.leaders[0]
    await gone.stop_http()
    assert [(await fleet.client.ask(stream=True)).status for _ in range(8)] == [200] * 8
    gone.script = deque([Refuse(503, unprocessed=True)] * 2)
    await gone.start_http_again()
    assert [(await fleet.client.ask(stream=True)).status for _ in range(8)] == [200] * 8
    resends = await fleet.client.metric("bireme_router_resends_total")
    assert resends <= 8, "a failed group is left alone until it says something new"
    attempts = [int(one.headers["x-bireme-attempt"]) for leader in fleet.leaders for one in leader.received]
    assert max(attempts) <= 2, "no request goes twice to a group that failed it"
    await fleet.client.until_ready(2)


async def test_the_only_group_refuses_for_a_while_and_the_request_waits(launch: Launch) -> None:
    fleet = await launch(1)
    fleet.leaders[0].script.extend([Refuse(503, unprocessed=True)] * 2)
    assert (await fleet.client.ask()).status == 200
    assert fleet.received == 3


async def test_t11_a_connection_closed_as_it_is_used_again_costs_nothing(launch: Launch) -> None:
    fleet = await launch(1)
    assert (await fleet.client.ask()).status == 200
    fleet.leaders[0].script.append(ResetAfterBody())
    assert (await fleet.client.ask()).status == 200
    assert fleet.received == 3
    await fleet.client.until_ready(1)


async def test_without_a_group_a_request_waits_and_is_then_refused_with_a_time(launch: Launch) -> None:
    fleet = await launch(1, "--queue-timeout", "0.3")
    await fleet.leaders[0].change(state="Recovering", retry_after_s=3.2)
    await fleet.client.until_ready(0)
    reply = await fleet.client.ask()
    assert reply.status == 503
    assert reply.headers["retry-after"] == "4"
    assert reply.headers["x-bireme-unprocessed"] == "1"


async def test_a_waiting_request_is_sent_when_a_group_appears(launch: Launch) -> None:
    fleet = await launch(1)
    await fleet.leaders[0].change(state="Recovering")
    await fleet.client.until_ready(0)
    asking = asyncio.create_task(fleet.client.ask())
    await fleet.client.until_metric("bireme_router_waiting", 1)
    await fleet.leaders[0].change(state="Serving", epoch=2)
    assert (await asking).status == 200


async def test_the_waiting_room_is_bounded(launch: Launch) -> None:
    fleet = await launch(1, "--max-queued", "1")
    await fleet.leaders[0].change(state="Recovering")
    await fleet.client.until_ready(0)
    waiting = asyncio.create_task(fleet.client.ask())
    await fleet.client.until_metric("bireme_router_waiting", 1)
    reply = await fleet.client.ask()
    assert reply.status == 429
    assert int(reply.headers["retry-after"]) >= 1
    await fleet.leaders[0].change(state="Serving")
    assert (await waiting).status == 200


async def test_a_clients_deadline_is_kept_before_and_after_the_send(launch: Launch) -> None:
    fleet = await launch(1)
    fleet.leaders[0].script.append(Silent(headers=False))
    reply = await fleet.client.ask(headers={"x-request-timeout": "0.3"})
    assert reply.status == 504
    await fleet.leaders[0].change(state="Recovering")
    await fleet.client.until_ready(0)
    reply = await fleet.client.ask(headers={"x-request-timeout": "0.3"})
    assert reply.status == 504
    assert "retry-after" in reply.headers


BAD = [
    (b"{", 400, "no JSON"),
    (b"[1]", 400, "JSON object"),
    (b'{"messages":[]}', 400, "model"),
    (b'{"model":"m","stream":"yes"}', 400, "stream"),
    (b'{"model":"m","stream_options":{}}', 400, "stream_options"),
    (b'{"model":"m","bireme":{}}', 400, "bireme"),
    (b'{"model":"other"}', 404, "other"),
    (b"\xff", 400, "no JSON"),
    (b"[" * 100_000, 400, "no JSON"),
]


async def test_a_request_that_cannot_be_right_is_refused_here(launch: Launch) -> None:
    fleet = await launch(1)
    for body, code, word in BAD:
        async with fleet.client.session.post(fleet.router.url + CHAT, data=body) as response:
            error = msgspec.json.decode(await response.read())["error"]
            assert response.status == code, body[:40]
        assert word in error["message"]
        assert error["type"] == "invalid_request_error"
    assert fleet.received == 0


async def test_a_large_body_is_refused_by_its_length_alone_and_in_chunks_when_it_passes_the_limit(
    launch: Launch,
) -> None:
    fleet = await launch(1, "--max-body-bytes", "2000")
    assert (await fleet.client.ask(user="x" * 1000)).status == 200
    url = fleet.router.url + CHAT
    reader, writer = await asyncio.open_connection("127.0.0.1", int(url.split(":")[2].split("/")[0]))
    writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: h\r\ncontent-length: 99999999\r\n\r\n")
    assert b" 413 " in await reader.readline()
    writer.close()

    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(100):
            yield b"x" * 100

    async with fleet.client.session.post(url, data=chunks()) as response:
        assert response.status == 413
    assert fleet.received == 1


async def test_a_negative_timeout_header_is_refused(launch: Launch) -> None:
    fleet = await launch(1)
    for value in ("-1", "soon", "nan"):
        assert (await fleet.client.ask(headers={"x-request-timeout": value})).status == 400


async def test_other_paths_and_methods_get_openais_error_object(launch: Launch) -> None:
    fleet = await launch(1)
    async with fleet.client.session.get(fleet.router.url + CHAT) as response:
        assert response.status == 405
        assert "POST" in (await response.json())["error"]["message"]
    async with fleet.client.session.post(fleet.router.url + "/v1/rerank", json=QUESTION) as response:
        assert response.status == 404
        assert (await response.json())["error"]["type"] == "invalid_request_error"
    async with aiohttp.ClientSession() as session, session.get(fleet.router.url + "/v1/models/nope") as response:
        assert response.status == 404
