"""`--processes N`: several routers on one port that tell, limit and share as one; and replicas that hear one another."""

import asyncio
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from bireme.names import Exit
from bireme_router.key_limits import KeyLimits
from bireme_router.merge import merge_routes
from bireme_router.replicas import PATH, Replicas
from bireme_router.usage import Usage
from tests.router.conftest import Launch
from tests.support.deployment import alive
from tests.support.router_process import CHAT, LIMIT_S, QUESTION, Client
from tests.support.stub_leader import TOKEN, Serve

MANY = 40


async def ask_anew(url: str, **headers: str) -> int:
    """One request on a connection of its own, so that the kernel deals it anew."""
    async with aiohttp.ClientSession() as session, session.post(url + CHAT, json=QUESTION, headers=headers) as response:
        await response.read()
        return response.status


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not holds():
            await asyncio.sleep(0.01)


def complete(routes: dict[str, Any]) -> bool:
    """A process that does not answer within a second is left out for this time."""
    return bool(routes["processes"] == 2) and sum(routes["traffic"]["first_token_s"]["counts"]) == MANY


async def test_metrics_and_routes_are_complete_over_all_processes(launch: Launch) -> None:
    fleet = await launch(2, "--processes", "2")
    for _ in range(MANY):
        assert await ask_anew(fleet.router.url) == 200
    for _ in range(4):
        client = Client(fleet.router.url)
        await client.until_metric('bireme_router_requests_total{code="200"}', MANY)
        await client.until_metric('bireme_router_group_ready{group="0"}', 1)
        async with asyncio.timeout(LIMIT_S):
            while not complete(json.loads(await client.page("/admin/routes"))):
                await asyncio.sleep(0.01)
        await client.session.close()
    await fleet.until_quiet()


async def test_a_keys_rate_is_that_of_all_processes_together(launch: Launch, tmp_path: Path) -> None:
    limits = tmp_path / "limits.json"
    limits.write_text('{"v": 1, "default": {"requests_per_minute": 20}}')
    fleet = await launch(1, "--processes", "3", "--limits", str(limits))
    answered = []
    for _ in range(50):
        answered.append(await ask_anew(fleet.router.url, authorization="Bearer sk-one"))
        await asyncio.sleep(0.05)  # what one process lets in is known to the others a tenth of a second later
    assert set(answered) == {200, 429}
    assert answered.count(200) < 45, "three processes alone would let sixty in"


async def test_a_process_that_dies_is_started_again_and_the_port_never_closes(launch: Launch) -> None:
    fleet = await launch(1, "--processes", "2")
    assert fleet.router.process is not None
    parent = fleet.router.process.pid
    await until(lambda: len(children(parent)) == 2)
    before = children(parent)
    os.kill(before[0], signal.SIGKILL)
    await until(lambda: len(set(children(parent)) - set(before)) == 1)
    async with asyncio.timeout(LIMIT_S):
        while json.loads(await fleet.client.page("/admin/routes"))["processes"] != 2:
            await asyncio.sleep(0.02)
    await fleet.client.until_ready(1)


async def test_sigterm_drains_every_process_and_a_killed_parent_leaves_none(launch: Launch) -> None:
    fleet = await launch(1, "--processes", "2")
    process = fleet.router.process
    assert process is not None
    fleet.leaders[0].script.append(Serve(pause_s=0.02))
    asking = asyncio.create_task(fleet.client.ask(stream=True))
    await until(lambda: bool(fleet.leaders[0].received))
    process.send_signal(signal.SIGTERM)
    assert (await asking).body.endswith(b"[DONE]\n\n")
    assert await process.wait() == Exit.DRAINED
    await fleet.router.start()
    assert fleet.router.process is not None
    left = children(fleet.router.process.pid)
    fleet.router.process.kill()
    await until(lambda: not any(alive(pid) for pid in left))


async def test_replicas_hear_what_keys_use_elsewhere_and_strangers_do_not(tmp_path: Path) -> None:
    from aiohttp import web

    token = tmp_path / "0"
    token.write_text(TOKEN)
    heard: dict[str, tuple[int, float]] = {}
    here, there = Usage(lambda *_: None), Usage(lambda key, requests, tokens: heard.update({key: (requests, tokens)}))
    app = web.Application()
    app.router.add_get(PATH, Replicas(here, token, "127.0.0.1", "").answer)
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}{PATH}"
    other = Replicas(there, token, "127.0.0.2", "")
    async with aiohttp.ClientSession() as session:
        async with session.get(url, headers={"authorization": "Bearer " + TOKEN}) as refused:
            assert refused.status == 401, "the group token itself is no key to it"
        following = asyncio.create_task(there.follow(session, url, other.headers()))

        def told() -> bool:
            here.note("team-a", 1, 40.0)
            return "team-a" in heard

        await until(told)
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
    await runner.cleanup()


def test_what_is_used_elsewhere_counts_against_the_key_here(tmp_path: Path) -> None:
    from bireme_router.errors import NotTaken

    path = tmp_path / "limits.json"
    path.write_text('{"v": 1, "default": {"requests_per_minute": 3}}')
    noted: list[tuple[str, int, float]] = []
    limits = KeyLimits(path, lambda: 5.0, lambda *used: noted.append(used))
    limits.admit("a", 10)
    limits.used_elsewhere("a", 2, 20.0)
    with pytest.raises(NotTaken):
        limits.admit("a", 10)
    limits.admit("b", 7)
    assert noted == [("a", 1, 10), ("b", 1, 7)], "what was heard is not told again"


def test_routes_of_processes_are_added_up_by_pod() -> None:
    def said(in_flight: int, pod: str = "p") -> dict[str, object]:
        group = {"pod": pod, "in_flight": in_flight, "outstanding_tokens": 10}
        return {
            "open": 1,
            "waiting": 2,
            "traffic": {"tokens": 5, "t": {"bounds": [1], "counts": [1, 2]}},
            "groups": [group],
        }

    whole = merge_routes(said(3), [said(4), said(5, "another")])
    assert whole["groups"] == [{"pod": "p", "in_flight": 7, "outstanding_tokens": 20}]
    assert whole["traffic"] == {"tokens": 15, "t": {"bounds": [1], "counts": [3, 6]}}
    assert (whole["open"], whole["waiting"], whole["processes"]) == (3, 6, 3)
