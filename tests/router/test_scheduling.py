"""Where requests go and what that leaves in the metrics, through a real router and over sockets."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from bireme_router.key_limits import BadLimits, read_limits
from tests.router.conftest import Fleet, Launch
from tests.support.router_process import LIMIT_S
from tests.support.stub_answers import CACHED
from tests.support.stub_leader import Fail, HandOver, Refuse, Serve, Silent

LONG: dict[str, Any] = {"messages": [{"role": "user", "content": "Call me Ishmael. " * 400}]}


def visits(fleet: Fleet) -> list[int]:
    return [len(leader.received) for leader in fleet.leaders]


async def test_a_prompt_goes_back_to_the_group_that_computed_its_beginning(launch: Launch) -> None:
    fleet = await launch(3)
    for turn in range(8):
        messages = [*LONG["messages"], *({"role": "user", "content": str(n)} for n in range(turn))]
        assert (await fleet.client.ask(messages=messages)).status == 200
    assert sorted(visits(fleet)) == [0, 0, 8]


async def test_short_strangers_are_spread(launch: Launch) -> None:
    fleet = await launch(3)
    for _ in range(30):
        await fleet.client.ask()
    assert min(visits(fleet)) > 0


async def test_a_conversation_with_a_name_stays_where_it_is(launch: Launch) -> None:
    fleet = await launch(3)
    for _ in range(8):
        await fleet.client.ask(headers={"x-bireme-session": "ahab"})
    assert sorted(visits(fleet)) == [0, 0, 8]
    assert all("x-bireme-session" not in one.headers for leader in fleet.leaders for one in leader.received)


async def test_a_re_formed_group_is_not_believed_to_know_what_it_lost(launch: Launch) -> None:
    fleet = await launch(1)
    await fleet.client.ask(**LONG)
    await fleet.client.ask(**LONG)
    predicted = await fleet.client.metric("bireme_router_predicted_cached_tokens_total")
    assert predicted > 0
    await fleet.leaders[0].change(state="Recovering", epoch=0)
    await fleet.client.until_ready(0)
    await fleet.leaders[0].change(state="Serving", epoch=2)
    await fleet.client.until_ready(1)
    await fleet.client.ask(**LONG)
    assert await fleet.client.metric("bireme_router_predicted_cached_tokens_total") == predicted


async def test_predicted_and_reported_cached_tokens_can_be_compared(launch: Launch) -> None:
    fleet = await launch(1)
    for _ in range(3):
        await fleet.client.ask(**LONG)
    await fleet.client.until_metric("bireme_router_reported_cached_tokens_total", 3 * CACHED)
    assert 0 < await fleet.client.metric("bireme_router_predicted_cached_tokens_total") <= 2 * 4


async def test_a_named_class_goes_to_the_worker_as_its_number(launch: Launch) -> None:
    fleet = await launch(1)
    await fleet.client.ask(headers={"x-bireme-priority": "interactive"})
    await fleet.client.ask(headers={"x-bireme-priority": "batch"}, priority=5)
    await fleet.client.ask()
    assert [one.json.get("priority") for one in fleet.leaders[0].received] == [-1, 5, None]
    for bad in ({"x-bireme-priority": "urgent"}, {"x-bireme-session": "x" * 300}):
        assert (await fleet.client.ask(headers=bad)).status == 400
    assert (await fleet.client.ask(priority="high")).status == 400


async def test_an_interactive_request_overtakes_batch_work_in_the_queue(launch: Launch) -> None:
    fleet = await launch(1)
    leader = fleet.leaders[0]
    await leader.change(state="Recovering")
    await fleet.client.until_ready(0)
    asking = []
    for n, name in enumerate(("batch", "standard", "interactive")):
        asking.append(asyncio.create_task(fleet.client.ask(headers={"x-bireme-priority": name}, user=name)))
        await fleet.client.until_metric("bireme_router_waiting", n + 1)
    await fleet.client.until_metric('bireme_router_waiting_by_priority{priority="batch"}', 1)
    await leader.change(state="Serving")
    assert [reply.status for reply in await asyncio.gather(*asking)] == [200] * 3
    await fleet.client.until_metric('bireme_router_queue_seconds_count{priority="interactive"}', 1)


async def test_a_canary_gets_its_share_and_its_own_series(launch: Launch) -> None:
    fleet = await launch(2)
    await fleet.leaders[1].change(model_revision="rev-2")
    fleet.router.write_routes(fleet.leaders, weights={"r/rev-1": 1, "r/rev-2": 0})
    await _until_route_weights(fleet)
    before = visits(fleet)[1]
    fleet.script.append(Serve(pause_s=0.002))
    for _ in range(20):
        assert (await fleet.client.ask()).status == 200
    assert visits(fleet)[1] == before
    attempts = 'bireme_router_attempts_total{model_revision="rev-1",outcome="ok",revision="r"}'
    await fleet.client.until_metric_is(attempts, lambda said: said >= 20)
    first = 'bireme_router_time_to_first_token_seconds_count{model_revision="rev-1",revision="r"}'
    await fleet.client.until_metric_is(first, lambda said: said >= 20)
    gaps = 'bireme_router_inter_token_latency_seconds_count{model_revision="rev-1",revision="r"}'
    await fleet.client.until_metric_is(gaps, lambda said: said > 3)


async def _until_route_weights(fleet: Fleet) -> None:
    """Ask until a whole run of requests has gone to the first group: the new routes are in use."""
    async with asyncio.timeout(LIMIT_S):
        in_a_row = 0
        while in_a_row < 12:
            before = visits(fleet)[1]
            await fleet.client.ask()
            in_a_row = in_a_row + 1 if visits(fleet)[1] == before else 0


async def test_errors_count_against_a_revision_and_refusals_and_handovers_do_not(launch: Launch) -> None:
    fleet = await launch(1)

    fleet.script.extend([Fail(6), Refuse(400), Refuse(503, unprocessed=True), HandOver(6), Refuse(500)])
    for _ in range(4):
        await fleet.client.ask(stream=True)
    for outcome, count in (("ok", 1), ("error", 2), ("refused", 2), ("moved", 1)):
        series = f'bireme_router_attempts_total{{model_revision="rev-1",outcome="{outcome}",revision="r"}}'
        await fleet.client.until_metric(series, count)


LIMITS = {"v": 1, "default": {"requests_per_minute": 2}}


async def test_a_key_over_its_rate_is_told_when_to_come_back_and_others_are_not(launch: Launch, tmp_path: Path) -> None:
    (tmp_path / "limits.json").write_text(json.dumps(LIMITS))
    fleet = await launch(1, "--limits", str(tmp_path / "limits.json"))
    one, two = ({"authorization": f"Bearer {name}"} for name in ("one", "two"))
    assert [(await fleet.client.ask(headers=one)).status for _ in range(2)] == [200, 200]
    reply = await fleet.client.ask(headers=one)
    assert reply.status == 429
    assert 1 <= int(reply.headers["retry-after"]) <= 30
    assert reply.headers["x-bireme-unprocessed"] == "1"
    assert json.loads(reply.body)["error"]["code"] == "rate_limit_exceeded"
    assert (await fleet.client.ask(headers=two)).status == 200


@pytest.mark.parametrize(
    "content", [b"{", b'{"v": 1, "keys": {"k": {"per_hour": 3}}}', b'{"v": 1, "default": {"tokens_per_minute": 0}}']
)
def test_a_limits_file_that_cannot_be_right_is_refused(content: bytes) -> None:
    with pytest.raises(BadLimits):
        read_limits(content)


async def test_a_group_at_work_is_filled_before_another_is_woken(launch: Launch) -> None:
    fleet = await launch(2)
    stages = [_stage(0), _stage(1)]
    for leader in fleet.leaders:
        await leader.change(stages=tuple(stages), epoch=2)
    await _until_epoch(fleet, 2)
    fleet.script.extend([Silent(0)] * 3)
    asking = []
    for n in range(3):
        asking.append(asyncio.create_task(fleet.client.ask(stream=True)))
        await fleet.until_received(n + 1)
    assert sorted(visits(fleet)) == [1, 2]
    for task in asking:
        task.cancel()


def _stage(number: int) -> Any:
    return {"stage": number, "incarnation": 1, "boot": "b", "last_heard_s": 0.0, "ranks": ()}


async def _until_epoch(fleet: Fleet, epoch: int) -> None:
    async with asyncio.timeout(LIMIT_S):
        while {group["epoch"] for group in json.loads(await fleet.client.page("/admin/routes"))["groups"]} != {epoch}:
            await asyncio.sleep(0.01)
