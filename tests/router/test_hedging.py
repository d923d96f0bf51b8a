"""A slow first token is hedged within a budget, the slower group is cancelled, and the client sees one answer."""

import asyncio

from bireme_router.accounts import Accounts, Lease, Whereabouts
from bireme_router.hedge import Contest, race
from bireme_router.outcome import Outcome
from bireme_router.policies.cost import Cost
from bireme_router.policies.eligible import Key
from bireme_router.policies.hedge_budget import HedgeBudget
from tests.router.conftest import Fleet, Launch
from tests.support.router_process import LIMIT_S
from tests.support.stub_leader import Behaviour, Die, Refuse, Serve, Silent

QUICK = ("--hedge-after", "0.05")


async def hedged(fleet: Fleet, winner: str) -> None:
    await fleet.client.until_metric(f'bireme_router_hedges_total{{winner="{winner}"}}', 1)


async def test_the_second_group_answers_and_the_first_is_cancelled(launch: Launch) -> None:
    fleet = await launch(2, *QUICK)
    fleet.script.append(Silent(headers=False))
    reply = await fleet.client.ask(stream=True, headers={"x-request-id": "one"})
    assert reply.status == 200
    assert reply.body.endswith(b"[DONE]\n\n")
    async with asyncio.timeout(LIMIT_S):
        await asyncio.wait(
            [asyncio.ensure_future(one.left.get()) for one in fleet.leaders], return_when="FIRST_COMPLETED"
        )
    await hedged(fleet, "second")
    sent = [one.json["bireme"] for leader in fleet.leaders for one in leader.received[-1:]]
    assert sent[0]["seed"] == sent[1]["seed"]
    await fleet.until_quiet()
    calm = await fleet.client.ask(stream=True)  # last: it might be slow enough to be hedged itself
    assert len(reply.body.splitlines()) == len(calm.body.splitlines())


async def test_the_first_group_may_still_win_and_the_second_is_cancelled(launch: Launch) -> None:
    fleet = await launch(2, *QUICK)
    both_asked = asyncio.Event()
    fleet.script.extend([Serve(gate=both_asked), Silent(headers=False)])
    asking = asyncio.create_task(fleet.client.ask())
    await fleet.until_received(2)
    both_asked.set()
    assert (await asking).status == 200
    await hedged(fleet, "first")
    await fleet.until_quiet()


async def test_no_second_send_without_the_flag_or_without_a_budget(launch: Launch) -> None:
    fleet = await launch(2, *QUICK)
    slowly: list[Behaviour] = [Silent(headers=False), *[Serve(head_after_s=0.2)] * 3]
    for slow in slowly:
        fleet.script.append(slow)
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
    await fleet.until_received(2)
    (silent,) = [leader for leader in fleet.leaders if leader.open]
    await silent.stop_http()
    assert (await asking).status == 200
    await fleet.until_quiet()


async def test_a_stream_that_won_is_continued_like_any_other(launch: Launch) -> None:
    fleet = await launch(3, *QUICK)
    fleet.script.extend([Silent(headers=False), Die(9)])
    reply = await fleet.client.ask(stream=True, headers={"x-request-id": "same"})
    assert reply.body.endswith(b"[DONE]\n\n")
    await fleet.until_quiet()
    calm = await fleet.client.ask(stream=True, headers={"x-request-id": "same"})
    assert len(reply.body.splitlines()) == len(calm.body.splitlines())


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


async def test_a_request_that_is_cancelled_twice_keeps_no_place() -> None:
    accounts, begun, closing = Accounts(), asyncio.Event(), asyncio.Event()
    account = accounts.of(Key("pod-0-1", 1), "0")
    lease = Lease(account, Cost(10, 10), Whereabouts("group-0", "http://0", ""), lambda: None)

    async def attempt(_: Lease, __: Contest) -> Outcome:
        try:
            begun.set()
            return await asyncio.Event().wait()  # type: ignore[return-value]
        finally:
            closing.set()
            await asyncio.Event().wait()

    request = asyncio.create_task(race(lease, attempt, lambda: None, 60.0))
    await begun.wait()
    request.cancel()
    await closing.wait()
    request.cancel()
    await asyncio.wait([request])
    assert request.cancelled()
    assert not accounts.leases()
