"""Which groups get requests: only what routes, state and the router's own experience all allow."""

import asyncio
import json

from tests.router.conftest import Launch
from tests.support.router_process import LIMIT_S
from tests.support.stub_leader import Serve, Silent, StubLeader


async def test_a_group_in_the_routes_is_used_and_one_taken_out_is_not(launch: Launch) -> None:
    fleet = await launch(1)
    second = await StubLeader(1).start()
    fleet.leaders.append(second)
    fleet.router.write_routes(fleet.leaders)
    await fleet.client.until_ready(2)
    fleet.router.write_routes([second])
    await fleet.client.until_page("/readyz", "1 of 1")
    assert (await fleet.client.ask()).status == 200
    assert len(second.received) == 1


async def test_a_broken_routes_file_changes_nothing(launch: Launch) -> None:
    fleet = await launch(1)
    (fleet.router.directory / "routes.json").write_text("{")
    async with asyncio.timeout(LIMIT_S):
        while "can't be read" not in fleet.router.log.read_text():
            await asyncio.sleep(0.01)
    assert (await fleet.client.ask()).status == 200


async def test_the_newest_incarnation_of_a_leader_takes_its_groups_place(launch: Launch) -> None:
    fleet = await launch(1)
    newer = await StubLeader(0, pod="pod-0-2").start()
    newer.incarnation = 2
    fleet.leaders.append(newer)
    fleet.router.write_routes(fleet.leaders)
    async with asyncio.timeout(LIMIT_S):
        while json.loads(await fleet.client.page("/admin/routes"))["groups"][0]["pod"] != "pod-0-2":
            await asyncio.sleep(0.01)
    await fleet.client.until_page("/readyz", "1 of 1")
    assert (await fleet.client.ask()).status == 200
    assert (len(fleet.leaders[0].received), len(newer.received)) == (0, 1)


async def test_a_leader_that_answers_as_another_incarnation_is_not_used(launch: Launch) -> None:
    fleet = await launch(1)
    fleet.leaders[0].incarnation = 7
    async with asyncio.timeout(LIMIT_S):
        while "answers as" not in json.loads(await fleet.client.page("/admin/routes"))["groups"][0]["reason"]:
            await asyncio.sleep(0.01)
    await fleet.client.until_ready(0)


async def test_a_lost_watch_makes_a_group_unready_until_it_is_dialled_again(launch: Launch) -> None:
    fleet = await launch(1)
    leader = fleet.leaders[0]
    leader.watch_speaks = False
    leader.say_goodbye()
    await fleet.client.until_ready(0)
    leader.watch_speaks = True
    await fleet.client.until_ready(1)


async def test_a_draining_group_gets_nothing_new(launch: Launch) -> None:
    fleet = await launch(2)
    await fleet.leaders[0].change(state="Draining", reason="DrainRequested", draining=True)
    await fleet.client.until_ready(1)
    for _ in range(5):
        assert (await fleet.client.ask()).status == 200
    assert len(fleet.leaders[0].received) == 0


async def test_a_group_at_its_limit_gets_no_more_until_a_request_ends(launch: Launch) -> None:
    fleet = await launch(1)
    leader = fleet.leaders[0]
    leader.limits = type(leader.limits)(4096, 1, 0)
    await leader.change()
    async with asyncio.timeout(LIMIT_S):
        while json.loads(await fleet.client.page("/admin/routes"))["groups"][0]["capacity"] != 1:
            await asyncio.sleep(0.01)
    leader.script.append(Serve(pause_s=0.02))
    replies = await asyncio.gather(*(fleet.client.ask() for _ in range(4)))
    assert [reply.status for reply in replies] == [200] * 4
    assert len(leader.received) == 4


async def test_a_stream_of_an_ended_epoch_is_given_up_although_its_connection_lives(launch: Launch) -> None:
    fleet = await launch(1)
    leader = fleet.leaders[0]
    leader.script.append(Silent(8))
    asking = asyncio.create_task(fleet.client.ask(stream=True))
    await fleet.until_received()
    await leader.change(epoch=2)
    reply = await asking
    assert reply.body.endswith(b"[DONE]\n\n")
    assert "its epoch ended" in fleet.router.log.read_text()


async def test_every_series_exists_before_the_first_request(launch: Launch) -> None:
    fleet = await launch(1)
    page = await fleet.client.page("/metrics")
    for series in (
        'bireme_router_requests_total{code="503"} 0.0',
        'bireme_router_in_flight{group="0"} 0.0',
        'bireme_router_outstanding_tokens{group="0"} 0.0',
        "bireme_router_waiting 0.0",
        "bireme_router_resends_total 0.0",
        "bireme_router_resumes_total 0.0",
        "bireme_router_client_disconnects_total 0.0",
        'bireme_router_group_ready{group="0"} 1.0',
    ):
        assert series in page
