"""A slow first token is hedged within a budget, the slower group is cancelled, and the client sees one answer."""

import asyncio

from bireme_router.policies.hedge_budget import HedgeBudget
from tests.router.conftest import Fleet, Launch
from tests.support.stub_leader import Die, Refuse, Serve, Silent

QUICK = ("--hedge-after", "0.05")


async def hedges(fleet: Fleet, winner: str) -> float:
    return await fleet.client.metric(f'bireme_router_hedges_total{{winner="{winner}"}}')


async def test_the_second_group_answers_and_the_first_is_cancelled(launch: Launch) -> None:
    fleet = await launch(2, *QUICK)
    calm = await fleet.client.ask(stream=True)
    fleet.script.append(Silent(headers=False))
    reply = await fleet.client.ask(stream=True, headers={"x-request-id": "one"})
    assert reply.status == 200
    assert reply.body.endswith(b"[DONE]\n\n")
    assert len(reply.body.splitlines()) == len(calm.body.splitlines())
    async with asyncio.timeout(10):
        await asyncio.wait(
            [asyncio.ensure_future(one.left.get()) for one in fleet.leaders], return_when="FIRST_COMPLETED"
        )
    assert await hedges(fleet, "second") == 1
    sent = [one.json["bireme"] for leader in fleet.leaders for one in leader.received[-1:]]
    assert sent[0]["seed"] == sent[1]["seed"]
    await fleet.until_quiet()


async def test_the_first_group_may_still_win_and_the_second_is_cancelled(launch: Launch) -> None:
    fleet = await launch(2, *QUICK)
    fleet.script.extend([Serve(head_after_s=1.0), Silent(headers=False)])
    reply = await fleet.client.ask()
    assert reply.status == 200
    assert await hedges(fleet, "first") == 1
    await fleet.until_quiet()


async def test_no_second_send_without_the_flag_or_without_a_budget(launch: Launch) -> None:
    fleet = await launch(2, *QUICK)
    for head_after_s in (1.0, 0.2, 0.2, 0.2):
        fleet.script.extend([Serve(head_after_s=head_after_s)])
        assert (await fleet.client.ask()).status == 200
    assert fleet.received == 5, "the router begins with one, and a twentieth more with each request"
    plain = await launch(2)
    plain.script.extend([Serve(head_after_s=0.2)])
    assert (await plain.client.ask()).status == 200
    assert plain.received == 1


async def test_a_hedged_request_outlives_the_failure_of_either_group(launch: Launch) -> None:
    fleet = await launch(3, *QUICK)
    fleet.script.extend([Silent(headers=False), Refuse(503, unprocessed=True)])
    asking = asyncio.create_task(fleet.client.ask())
    async with asyncio.timeout(10):
        while fleet.received < 2:
            await asyncio.sleep(0.005)
    (silent,) = [leader for leader in fleet.leaders if leader.open]
    await silent.stop_http()
    assert (await asking).status == 200
    await fleet.until_quiet()


async def test_a_stream_that_won_is_continued_like_any_other(launch: Launch) -> None:
    fleet = await launch(3, *QUICK)
    calm = await fleet.client.ask(stream=True, headers={"x-request-id": "same"})
    fleet.script.extend([Silent(headers=False), Die(9)])
    reply = await fleet.client.ask(stream=True, headers={"x-request-id": "same"})
    assert reply.body.endswith(b"[DONE]\n\n")
    assert len(calm.body) > 0
    await fleet.until_quiet()


def test_the_budget_grows_by_requests_alone_and_is_bounded() -> None:
    spent = HedgeBudget().spent()
    assert spent is not None
    assert spent.spent() is None
    for _ in range(20):
        spent = spent.admitted()
    assert spent.kept > 0.99
    for _ in range(10_000):
        spent = spent.admitted()
    assert spent.kept == 10.0
