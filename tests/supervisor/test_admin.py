"""The admin port of a real supervisor: probes, state, metrics, verbs, and everything that it must refuse."""

import contextlib
import os
import signal

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from bireme.names import Metric
from bireme.wire.state import read_state
from tests.supervisor.pods import TOKEN, Pod, Pods, new_address, pids, rank

Group = tuple[Pod, Pod]


def _metrics(text: str) -> dict[tuple[str, str], float]:
    """(name, first label's value) → value."""
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return {(sample.name, next(iter(sample.labels.values()), "")): sample.value for sample in samples}


async def test_probes_and_metrics_need_no_token(lasting_group: Group) -> None:
    leader, other = lasting_group
    document = await leader.until_serving()
    await other.until_serving()
    for pod in lasting_group:
        assert (await pod.get("/livez"))[0] == 200
        assert (await pod.get("/readyz"))[0] == 200
        code, text = await pod.get("/metrics")
        assert code == 200
        metrics = _metrics(text)
        assert metrics[Metric.EPOCH, ""] == document.epoch
        assert metrics[Metric.READY, ""] == metrics[Metric.LOADS, "1"] == 1
    assert _metrics((await leader.get("/metrics"))[1])[Metric.GENERATION_TOKENS, ""] == 4
    assert Metric.GENERATION_TOKENS not in (await other.get("/metrics"))[1]


@pytest.mark.parametrize("path", ["/state", "/watch"])
async def test_state_needs_the_token(lasting_group: Group, path: str) -> None:
    leader, _ = lasting_group
    await leader.until_serving()
    assert (await leader.get(path))[0] == 401
    assert (await leader.get(path, token=b"w" * 32))[0] == 401


@pytest.mark.parametrize("verb", ["drain", "undrain", "abort", "leader", "reload", "adopt", "profile"])
async def test_every_verb_needs_the_token_and_does_nothing_without_it(lasting_group: Group, verb: str) -> None:
    leader, _ = lasting_group
    await leader.until_serving()
    assert (await leader.post(f"/{verb}", token=b"w" * 32))[0] == 401
    assert (await leader.get("/readyz"))[0] == 200


async def test_the_state_names_every_stage_and_rank(lasting_group: Group) -> None:
    leader, other = lasting_group
    await leader.until_serving()
    await leader.until(lambda document: all(stage.last_heard_s < 2 for stage in document.stages))
    document = read_state((await leader.get("/state", TOKEN))[1])
    assert [stage.stage for stage in document.stages] == [0, 1]
    own = read_state((await other.get("/state", TOKEN))[1])
    assert pids(own, 1) == pids(document, 1)
    assert (document.group, document.model_revision, document.block_size) == ("g", "1", 16)


async def test_watch_streams_each_change_and_seq_grows_with_it(lasting_group: Group) -> None:
    leader, other = lasting_group
    first = await leader.until_serving()
    seen = []
    async with contextlib.aclosing(leader.watch(interval_s=60)) as documents:
        async for document in documents:
            seen.append(document)
            if len(seen) == 1:
                os.kill(rank(first, 1, 0).pid, signal.SIGKILL)
            if document.ready and document.epoch > first.epoch:
                break
    assert [document.seq for document in seen] == sorted({document.seq for document in seen})
    states = [document.state for document in seen]
    assert states.index("Recovering") > states.index("Serving")
    await other.until_serving(above=first.epoch)


async def test_a_drain_and_its_end_are_seen_on_every_stage(lasting_group: Group) -> None:
    leader, other = lasting_group
    before = await leader.until_serving()
    code, text = await leader.post("/drain", {"deadline_s": 30})
    assert (code, read_state(text).state) == (200, "Draining")
    assert (await leader.get("/readyz"))[0] == 503
    await other.until(lambda document: document.draining)
    assert (await leader.post("/undrain"))[0] == 200
    assert (await leader.until_serving()).epoch == before.epoch
    await other.until_serving()


@pytest.mark.parametrize(
    ("verb", "body", "names"),
    [
        ("drain", {"deadline_s": "soon"}, "deadline_s"),
        ("drain", {"deadline_s": -1}, "deadline_s"),
        ("drain", b"{nonsense", "malformed"),
        ("abort", {}, "request_id"),
        ("leader", {"address": "127.0.0.1"}, "incarnation"),
        ("leader", {"address": "", "incarnation": 1}, "address"),
    ],
)
async def test_a_bad_body_is_refused_by_the_name_of_its_field(
    lasting_group: Group, verb: str, body: object, names: str
) -> None:
    leader, _ = lasting_group
    await leader.until_serving()
    code, text = await leader.post(f"/{verb}", body)
    assert code == 400
    assert names in msgspec.json.decode(text)["error"]["message"]
    assert (await leader.get("/readyz"))[0] == 200


async def test_a_bad_interval_is_refused(lasting_group: Group) -> None:
    leader, _ = lasting_group
    await leader.until_serving()
    for interval in ("0", "-1", "nan", "fast"):
        assert (await leader.get(f"/watch?interval={interval}", TOKEN))[0] == 400


async def test_what_a_pod_can_not_do_says_why_and_what_is_the_leaders_names_it(lasting_group: Group) -> None:
    leader, other = lasting_group
    await leader.until_serving()
    assert (await leader.post("/abort", {"request_id": "r1"}))[0] == 200
    code, text = await leader.post("/adopt", {"group": "g", "stage": 1, "incarnation": 2, "leader": "127.0.0.1"})
    assert (code, "this pod is stage 0 of group g" in text) == (409, True)
    code, text = await other.post("/reload", {"source": "/m", "model_revision": "2"})
    assert (code, leader.address in text) == (409, True)
    code, text = await other.post("/abort", {"request_id": "r1"})
    assert (code, leader.address in text) == (409, True)


@pytest.mark.parametrize(
    "change", [{"source": "models/2"}, {"model_revision": ""}, {"mode": "later"}, {"deadline_s": -1}, {"source": 5}]
)
async def test_a_reload_that_can_not_be_meant_is_refused(lasting_group: Group, change: dict[str, object]) -> None:
    leader, _ = lasting_group
    await leader.until_serving()
    code, _ = await leader.post("/reload", {"source": "/models/2", "model_revision": "2", **change})
    assert code == 400


async def test_the_served_name_for_other_weights_is_refused(lasting_group: Group) -> None:
    leader, _ = lasting_group
    await leader.until_serving()
    code, text = await leader.post("/reload", {"source": "/models/other", "model_revision": "1"})
    assert (code, "another name" in text) == (409, True)


async def test_a_stage_follows_the_leader_to_another_address(pods: Pods) -> None:
    leader = pods.make(0).start()
    other = pods.make(1, dials=new_address()).start()
    lost = await other.until(lambda document: [loads for _, loads in pids(document, 1)] == [1, 1])
    assert (lost.state, lost.reason) == ("Starting", "Rendezvous")
    assert (await other.post("/leader", {"address": leader.address, "incarnation": 1}))[0] == 200
    document = await leader.until_serving()
    assert pids(document, 1) == pids(lost, 1)


async def test_a_leader_that_hears_of_a_newer_one_steps_down(pods: Pods) -> None:
    leader, _ = pods.group()
    await leader.until_serving()
    body = {"address": new_address(), "incarnation": 2}
    code, text = await leader.post("/leader", body)
    assert (code, read_state(text).reason) == (200, "Superseded")
    assert (await leader.get("/readyz"))[0] == 503
