"""Changes of what serves, under clients that never stop asking: another image, a bad one, another checkpoint, scale."""

import time

import httpx

from bireme.names import GroupState, Label
from tests.e2e.ground import DEPLOYMENT, NEXT_WORKER, URL, Cluster, worker_image
from tests.e2e.times import Times
from tests.e2e.traffic import Steady


def images(cluster: Cluster) -> set[str]:
    return {pod["spec"]["containers"][0]["image"] for pod in cluster.stages().values()}


def test_a_new_image_is_rolled_out_without_a_failed_request(demo: Cluster, times: Times) -> None:
    before = images(demo)
    began = time.monotonic()
    with Steady(URL) as steady:
        demo.patch(worker_image(NEXT_WORKER))
        demo.await_ready(within=300)
        times.note("another image, both groups replaced", time.monotonic() - began)
    steady.check()
    assert images(demo) == {NEXT_WORKER}
    demo.patch(worker_image(None))
    demo.await_ready(within=300)
    assert images(demo) == before


def test_a_bad_image_stops_nobody_and_its_fix_needs_no_help(demo: Cluster, times: Times) -> None:
    before = demo.uids()
    with Steady(URL) as steady:
        demo.patch(worker_image("bireme-worker:none-such"))
        demo.eventually(lambda: "bireme-worker:none-such" in images(demo), within=60)
        demo.eventually(lambda: pulling_fails(demo), within=120)
        assert before.items() <= demo.uids().items(), "the groups that serve wait for one that does"
        began = time.monotonic()
        demo.patch(worker_image(None))
        demo.await_ready(within=300)
        times.note("bad image taken back, all is as before", time.monotonic() - began)
    steady.check()
    assert demo.uids() == before


def pulling_fails(cluster: Cluster) -> bool:
    """Whether the kubelet says of any stage that its image can't be had."""
    states = [
        one["state"].get("waiting", {}).get("reason")
        for pod in cluster.stages().values()
        for one in pod["status"].get("containerStatuses", ())
    ]
    return bool({"ErrImagePull", "ImagePullBackOff"} & set(states))


def test_a_checkpoint_is_reloaded_in_place(demo: Cluster, times: Times) -> None:
    before = demo.uids()
    began = time.monotonic()
    with Steady(URL) as steady:
        demo.patch({"model": {"revision": "2"}})
        demo.eventually(lambda: {one["modelRevision"] for one in demo.groups().values()} == {"2"}, within=200)
        demo.await_ready()
        times.note("another checkpoint, reloaded in place by both groups", time.monotonic() - began)
    steady.check()
    assert demo.uids() == before


def test_two_groups_become_four_none_and_two_again(demo: Cluster, times: Times) -> None:
    with Steady(URL) as steady:
        for replicas in (4, 2):
            began = time.monotonic()
            demo.kubectl("scale", "infd", DEPLOYMENT, f"--replicas={replicas}")
            demo.await_ready(within=300)
            times.note(f"scaled to {replicas} groups", time.monotonic() - began)
            serving = [group["state"] for group in demo.groups().values()]
            assert serving == [GroupState.SERVING] * replicas
    steady.check()
    demo.kubectl("scale", "infd", DEPLOYMENT, "--replicas=0")
    selector = f"{Label.DEPLOYMENT}={DEPLOYMENT},{Label.STAGE}"
    demo.eventually(lambda: not demo.items("pods", "-l", selector), within=120)
    question = {"model": "smollm2-135m-instruct", "messages": [{"role": "user", "content": "?"}]}
    refused = httpx.post(f"{URL}/v1/chat/completions", json=question, headers={"x-request-timeout": "1"}, timeout=60)
    assert refused.status_code in {503, 504}, refused.text
    began = time.monotonic()
    demo.kubectl("scale", "infd", DEPLOYMENT, "--replicas=2")
    demo.await_ready(within=300)
    times.note("from nothing to 2 groups", time.monotonic() - began)
