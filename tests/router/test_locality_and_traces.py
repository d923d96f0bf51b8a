"""Zones break ties, other revisions are allowed only where asked for, caches are verified always, spans tell it all."""

import asyncio
from pathlib import Path

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from bireme.wire.journal import Opened, journal_line
from bireme_router.app import running
from bireme_router.policies.placement import Candidate, Price, place
from bireme_router.settings import Settings
from tests.router.conftest import Launch
from tests.support.router_process import LIMIT_S, Client, RouterProcess
from tests.support.stub_leader import ResetAfterBody, Silent, StubLeader


@pytest.mark.parametrize("draws", [(0.0, 0.0), (0.4, 0.9), (0.99, 0.5)])
def test_the_callers_zone_wins_a_tie_and_loses_to_a_cheaper_group(draws: tuple[float, float]) -> None:
    groups = [Candidate(0, 1, holds=False, near=index == 2) for index in range(4)]
    assert place(groups, lambda _: Price(1.0, 1.0), draws) == 2
    assert place(groups, lambda index: Price(2.0 if index == 2 else 1.0, 1.0), draws) != 2


async def test_requests_stay_in_the_zone_that_the_caller_or_the_router_names(launch: Launch) -> None:
    fleet = await launch(3, "--zone", "b")
    fleet.router.write_routes(fleet.leaders, zones=("a", "b", "c"))
    async with asyncio.timeout(LIMIT_S):
        while '"zone":"c"' not in await fleet.client.page("/admin/routes"):
            await asyncio.sleep(0.01)
    await fleet.client.until_ready(3)
    for _ in range(6):
        await fleet.client.ask()
    for _ in range(6):
        await fleet.client.ask(headers={"x-bireme-zone": "c"})
    assert [len(leader.received) for leader in fleet.leaders] == [0, 6, 6]


async def test_a_stream_goes_on_under_another_revision_only_where_that_is_allowed(launch: Launch) -> None:
    async def broken(*flags: str) -> bytes:
        fleet = await launch(2, *flags)
        await fleet.leaders[1].change(model_revision="newer")
        fleet.script.append(Silent(9))
        asking = asyncio.create_task(fleet.client.ask(stream=True))
        await fleet.until_received()
        (begun,) = [leader for leader in fleet.leaders if leader.received]
        await begun.change(state="Recovering", epoch=2)  # which ends its streams after a second's grace
        return (await asking).body

    assert b"[DONE]" not in await broken("--total-timeout", "3")
    assert (await broken("--cross-revision")).endswith(b"[DONE]\n\n")


async def test_cached_tokens_are_verified_though_the_client_asked_for_no_usage(launch: Launch) -> None:
    fleet = await launch(1)
    fleet.leaders[0].cached_tokens = 3
    reply = await fleet.client.ask(stream=True)
    assert b'"usage"' not in reply.body
    await fleet.client.until_metric("bireme_router_reported_cached_tokens_total", 3)
    assert b"cached_tokens" not in journal_line(Opened(1, [1], "r")), "a worker that does not know says nothing"


@pytest.fixture(scope="module")
def spans() -> InMemorySpanExporter:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    return exporter


async def test_a_request_and_each_attempt_become_spans_of_the_clients_trace(
    tmp_path: Path, spans: InMemorySpanExporter
) -> None:
    leaders = [await StubLeader(index).start() for index in range(2)]
    RouterProcess(tmp_path).write_routes(leaders)
    async with running(Settings(routes=tmp_path / "routes.json", port=0)) as router:
        client = Client(await router.listen())
        following = asyncio.create_task(router.follow())
        await client.until_ready(2)
        for leader in leaders:
            leader.script.append(ResetAfterBody())
        trace_id, parent = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
        assert (await client.ask(headers={"traceparent": f"00-{trace_id}-{parent}-01"})).status == 200
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        await client.session.close()
    whole = [span for span in spans.get_finished_spans() if span.name.startswith("POST")]
    attempts = [span for span in spans.get_finished_spans() if span.name == "attempt"]
    assert [span.attributes["http.response.status_code"] for span in whole if span.attributes] == [200]
    assert [span.attributes["bireme.outcome"] for span in attempts if span.attributes] == ["lost", "lost", "finished"]
    assert {format(span.context.trace_id, "032x") for span in (*whole, *attempts)} == {trace_id}
    sent = [one.headers["traceparent"] for leader in leaders for one in leader.received]
    assert {line.split("-")[2] for line in sent} == {format(span.context.span_id, "016x") for span in attempts}
    for leader in leaders:
        await leader.stop()


async def test_without_an_sdk_nothing_is_traced_and_the_clients_trace_passes(launch: Launch) -> None:
    fleet = await launch(1)
    given = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    await fleet.client.ask(headers={"traceparent": given})
    assert fleet.leaders[0].received[0].headers["traceparent"] == given
