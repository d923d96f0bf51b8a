"""Changes of what serves, under clients that never stop asking: another image, a bad one, another checkpoint, scale."""

import time
from collections.abc import Iterator

import httpx
import pytest

from bireme.names import GroupState, Label
from tests.e2e.commands import run
from tests.e2e.ground import DEPLOYMENT, NEXT_WORKER, URL, Cluster, Document, worker_image
from tests.e2e.times import Times
from tests.e2e.traffic import steady


def images(cluster: Cluster) -> set[str]:
    return {pod["spec"]["containers"][0]["image"] for pod in cluster.stages().values()}


def test_a_new_image_is_rolled_out_without_a_failed_request(demo: Cluster, times: Times) -> None:
    before = images(demo)
    began = time.monotonic()
    with steady(URL) as load:
        demo.patch(worker_image(NEXT_WORKER))
        demo.await_ready(within=300)
        times.note("both groups replaced after", time.monotonic() - began)
    load.check()
    assert images(demo) == {NEXT_WORKER}
    demo.patch(worker_image(None))
    demo.await_ready(within=300)
    assert images(demo) == before


def test_a_bad_image_stops_nobody_and_its_fix_needs_no_help(demo: Cluster, times: Times) -> None:
    before = demo.uids()
    with steady(URL) as load:
        demo.patch(worker_image("bireme-worker:none-such"))
        demo.eventually(lambda: "bireme-worker:none-such" in images(demo), within=60)
        demo.eventually(lambda: pulling_fails(demo), within=120)
        assert before.items() <= demo.uids().items(), "the groups that serve wait for one that does"
        began = time.monotonic()
        demo.patch(worker_image(None))
        demo.await_ready(within=300)
        times.note("all is as before, after its fix,", time.monotonic() - began)
    load.check()
    assert demo.uids() == before


def pulling_fails(cluster: Cluster) -> bool:
    """Whether the kubelet says of any stage that its image can't be had."""
    states = [
        one["state"].get("waiting", {}).get("reason")
        for pod in cluster.stages().values()
        for one in pod["status"].get("containerStatuses", ())
    ]
    return bool({"ErrImagePull", "ImagePullBackOff"} & set(states))


# Python runs a file of this name at its start: the revision's HTTP process answers every request with an error.
BAD_BUILD = """
import sys
if "bireme_worker.http.main" in sys.orig_argv:
    from aiohttp import web

    @web.middleware
    async def fail(request, handler):
        if request.method == "POST":
            return web.json_response({"error": {"message": "a bad build"}}, status=500)
        return await handler(request)

    begin = web.Application.__init__

    def begin_badly(self, *words, **options):
        begin(self, *words, **options)
        self.middlewares.insert(0, fail)

    web.Application.__init__ = begin_badly
"""
BAD: Document = {
    "containers": [
        {
            "name": "worker",
            "env": [{"name": "PYTHONPATH", "value": "/bad"}],
            "volumeMounts": [{"name": "bad", "mountPath": "/bad", "readOnly": True}],
        }
    ],
    "volumes": [{"name": "bad", "configMap": {"name": "bad-build"}}],
}
CANARY = {"groups": 1, "analysisSeconds": 5, "minRequests": 20, "maxErrorPercent": 5, "maxSlowdownPercent": 1000}


@pytest.fixture
def with_canaries(demo: Cluster) -> Iterator[Cluster]:
    """The demo with a judge of its rollouts."""
    bad = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "bad-build"}}
    demo.apply({**bad, "data": {"sitecustomize.py": BAD_BUILD}})
    demo.patch({"rollout": {"canary": CANARY}})
    demo.await_ready()
    yield demo
    demo.patch({"rollout": {"canary": None}, "template": {"spec": {"containers": None, "volumes": None}}})
    demo.await_ready(within=300)
    demo.kubectl("delete", "configmap", "bad-build")


def test_a_canary_of_a_bad_revision_is_taken_back(with_canaries: Cluster, times: Times) -> None:
    demo = with_canaries
    before = demo.uids()
    with steady(URL) as load:
        began = time.monotonic()
        demo.patch({"template": {"spec": BAD}})
        stalled = demo.eventually(lambda: rolled_back(demo), within=300)
        times.note("found bad after", time.monotonic() - began)
        assert "the canary failed too many requests (5 % are allowed)" in stalled["message"]
        demo.eventually(lambda: not bad_pods(demo) and serving(demo) == 2, within=300)
        times.note("taken back after", time.monotonic() - began)
        failed, answered = len(load.failed), load.answered
        demo.eventually(lambda: load.answered > answered + 10, within=120)
        assert load.failed[failed:] == []
    assert all("a bad build" in one for one in load.failed), load.failed[:5]
    groups = {group for group, _ in set(before.items()) & set(demo.uids().items())}
    assert groups, "the group that is no canary was not touched"
    assert "RolledBack" in run("kubectl", "bireme", "why", DEPLOYMENT)


def rolled_back(cluster: Cluster) -> Document | None:
    """The condition that says so, once it does."""
    stalled = cluster.condition("Stalled")
    return stalled if stalled.get("reason") == "RolledBack" else None


def bad_pods(cluster: Cluster) -> list[str]:
    """Names of the stage pods of the bad revision, those that still end too."""
    found = cluster.items("pods", "-l", f"{Label.DEPLOYMENT}={DEPLOYMENT},{Label.STAGE}")
    return [pod["metadata"]["name"] for pod in found if "bad" in {one["name"] for one in pod["spec"]["volumes"]}]


def states(cluster: Cluster) -> list[str]:
    return [group["state"] for group in cluster.groups().values()]


def serving(cluster: Cluster) -> int:
    return states(cluster).count(GroupState.SERVING)


def test_a_checkpoint_is_reloaded_in_place(demo: Cluster, times: Times) -> None:
    before = demo.uids()
    began = time.monotonic()
    with steady(URL) as load:
        demo.patch({"model": {"revision": "2"}})
        demo.eventually(lambda: {one["modelRevision"] for one in demo.groups().values()} == {"2"}, within=200)
        demo.await_ready()
        times.note("both groups reloaded after", time.monotonic() - began)
    load.check()
    assert demo.uids() == before


def test_two_groups_become_four_none_and_two_again(demo: Cluster, times: Times) -> None:
    with steady(URL) as load:
        for replicas in (4, 2):
            began = time.monotonic()
            demo.kubectl("scale", "infd", DEPLOYMENT, f"--replicas={replicas}")
            demo.await_ready(within=300)
            times.note(f"{replicas} groups after", time.monotonic() - began)
            demo.eventually(lambda: states(demo) == [GroupState.SERVING] * replicas, within=60)  # noqa: B023  # at once
    load.check()
    demo.kubectl("scale", "infd", DEPLOYMENT, "--replicas=0")
    selector = f"{Label.DEPLOYMENT}={DEPLOYMENT},{Label.STAGE}"
    demo.eventually(lambda: not demo.items("pods", "-l", selector), within=120)
    question = {"model": "smollm2-135m-instruct", "messages": [{"role": "user", "content": "?"}]}
    refused = httpx.post(f"{URL}/v1/chat/completions", json=question, headers={"x-request-timeout": "1"}, timeout=60)
    assert refused.status_code in {503, 504}, refused.text
    began = time.monotonic()
    demo.kubectl("scale", "infd", DEPLOYMENT, "--replicas=2")
    demo.await_ready(within=300)
    times.note("2 of none after", time.monotonic() - began)
