"""What people do to a cluster that serves: drain a node, stop a kubelet, replace the operator and the router."""

import time

from tests.e2e.conftest import SYSTEM, TOKENS
from tests.e2e.ground import DEPLOYMENT, NEXT_WORKER, URL, Cluster, worker_image
from tests.e2e.times import Times
from tests.e2e.traffic import Steady, Traffic

_OPERATOR = "app.kubernetes.io/component=operator"


def test_a_drained_node_gives_up_its_group_without_a_failed_request(demo: Cluster, times: Times) -> None:
    node, places = demo.quiet_node()
    before = demo.uids()
    try:
        with Steady(URL) as steady:
            began = time.monotonic()
            demo.kubectl(
                "drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=300s", timeout=320
            )  # fmt: skip
            times.note("kubectl drain of a node, group moved", time.monotonic() - began)
            demo.await_ready()
        steady.check()
        assert node not in {pod["spec"]["nodeName"] for pod in demo.stages().values()}
        groups = {group for group, _ in places}
        others = {place: uid for place, uid in before.items() if place[0] not in groups}
        assert others.items() <= demo.uids().items()
    finally:
        demo.kubectl("uncordon", node)


def test_a_kubelet_that_stops_costs_nothing(demo: Cluster, undisturbed: list[list[int]], times: Times) -> None:
    node, _ = demo.quiet_node()
    traffic = Traffic(URL, TOKENS)
    demo.docker("exec", node, "systemctl", "stop", "kubelet")
    began = time.monotonic()
    try:
        demo.eventually(lambda: not demo.node_ready(node), within=120)
        times.note("kubelet stopped, Kubernetes calls the node not ready", time.monotonic() - began)
        assert [item.ids for item in traffic.finish()] == undisturbed
        with Steady(URL) as steady:
            demo.eventually(lambda: steady.answered >= 10, within=120)
        steady.check()
    finally:
        demo.docker("exec", node, "systemctl", "start", "kubelet")
        demo.eventually(lambda: demo.node_ready(node), within=120)
    demo.await_ready()


def test_an_operator_that_is_killed_in_a_rollout_is_followed_by_one_that_goes_on(demo: Cluster, times: Times) -> None:
    before = set(demo.uids().values())
    began = time.monotonic()
    with Steady(URL) as steady:
        demo.patch(worker_image(NEXT_WORKER))
        demo.eventually(lambda: set(demo.uids().values()) - before, within=60)
        demo.kubectl("delete", "pod", "-n", SYSTEM, "-l", _OPERATOR, "--force", "--grace-period=0")
        demo.await_ready(within=300)
        times.note("rollout with the operator killed in it", time.monotonic() - began)
    steady.check()
    assert not before & set(demo.uids().values())
    demo.patch(worker_image(None))
    demo.await_ready(within=300)


def test_a_router_is_replaced_under_streams(demo: Cluster, undisturbed: list[list[int]], times: Times) -> None:
    router = f"deployment/{DEPLOYMENT}-router"
    before = demo.uids()
    traffic = Traffic(URL, TOKENS)
    traffic.await_tokens(80)
    began = time.monotonic()
    demo.kubectl("rollout", "restart", router)
    demo.kubectl("rollout", "status", router, "--timeout=120s")
    times.note("router replaced under streams", time.monotonic() - began)
    assert [item.ids for item in traffic.finish()] == undisturbed
    assert demo.uids() == before
