"""What people do to a cluster that serves: drain a node, stop a kubelet, replace the operator and the router."""

import time
from collections.abc import Callable
from pathlib import Path

from bireme.names import GroupState, Label
from tests.e2e.commands import run
from tests.e2e.conftest import TOKENS
from tests.e2e.ground import DEPLOYMENT, NEXT_WORKER, URL, Cluster, worker_image
from tests.e2e.release import SYSTEM, install, install_previous
from tests.e2e.times import Times
from tests.e2e.traffic import Traffic, steady

_OPERATOR = "app.kubernetes.io/component=operator"


def test_a_drained_node_gives_up_its_group_without_a_failed_request(demo: Cluster, times: Times) -> None:
    node, places = demo.quiet_node()
    before = demo.uids()
    demo.eventually(lambda: budgets_hold(demo), within=60)
    try:
        with steady(URL) as load:
            began = time.monotonic()
            words = ("kubectl", "drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=300s")
            told = run(*words, timeout=320, complaints=True)
            times.note("drained after", time.monotonic() - began)
            demo.await_ready()
        load.check()
        assert "violate the pod's disruption budget" in told, "an eviction is answered by 429 until its group has moved"
        assert node not in {pod["spec"].get("nodeName") for pod in demo.stages().values()}
        groups = {group for group, _ in places}
        others = {place: uid for place, uid in before.items() if place[0] not in groups}
        assert others.items() <= demo.uids().items()
    finally:
        demo.kubectl("uncordon", node)


def budgets_hold(demo: Cluster) -> bool:
    """Whether the Eviction API spares both groups: a budget is made after its group serves."""
    budgets = [one.get("status", {}) for one in demo.items("pdb", "-l", f"{Label.DEPLOYMENT}={DEPLOYMENT}")]
    return len(budgets) == 2 and all(0 < one.get("desiredHealthy", 0) <= one["currentHealthy"] for one in budgets)


def test_a_kubelet_that_stops_costs_nothing_and_its_group_moves_after_a_while(
    demo: Cluster, undisturbed: list[list[int]], times: Times
) -> None:
    node, places = demo.quiet_node()
    groups = {group for group, _ in places}
    before = demo.uids()
    traffic = Traffic(URL, TOKENS)
    demo.docker("exec", node, "systemctl", "stop", "kubelet")
    began = time.monotonic()
    try:
        with steady(URL) as load:
            demo.eventually(lambda: not demo.node_ready(node), within=120)
            times.note("Kubernetes calls the node not ready after", time.monotonic() - began)
            assert demo.uids() == before, "whoever serves is left alone at first"
            assert [item.ids for item in traffic.finish()] == undisturbed
            demo.eventually(lambda: two_serve_without(demo, groups), within=360)
            times.note("the group serves elsewhere after", time.monotonic() - began)
        load.check()
        others = {place: uid for place, uid in before.items() if place[0] not in groups}
        assert others.items() <= demo.uids().items()
    finally:
        demo.docker("exec", node, "systemctl", "start", "kubelet")
        demo.eventually(lambda: demo.node_ready(node), within=120)
    demo.await_ready()


def two_serve_without(demo: Cluster, groups: set[int]) -> bool:
    """Whether as many groups serve as are wanted, none of which is one of these."""
    serving = {index for index, group in demo.groups().items() if group["state"] == GroupState.SERVING}
    return len(serving - groups) == 2


def test_an_operator_that_is_killed_in_a_rollout_is_followed_by_one_that_goes_on(demo: Cluster, times: Times) -> None:
    def kill() -> None:
        demo.kubectl("delete", "pod", "-n", SYSTEM, "-l", _OPERATOR, "--force", "--grace-period=0")

    rollout_with(kill, demo, times)


def test_an_operator_that_is_upgraded_in_a_rollout_is_followed_by_one_that_goes_on(
    demo: Cluster, times: Times, tmp_path: Path
) -> None:
    install_previous(tmp_path)
    demo.await_ready()
    rollout_with(install, demo, times)


def rollout_with(what: Callable[[], None], demo: Cluster, times: Times) -> None:
    """Do ``what`` to the operator in the middle of a rollout, and see it through."""
    before = set(demo.uids().values())
    began = time.monotonic()
    with steady(URL) as load:
        demo.patch(worker_image(NEXT_WORKER))
        demo.eventually(lambda: set(demo.uids().values()) - before, within=60)
        what()
        demo.await_ready(within=300)
        times.note("both groups replaced after", time.monotonic() - began)
    load.check()
    assert not before & set(demo.uids().values())
    demo.patch(worker_image(None))
    demo.await_ready(within=300)


def test_a_router_is_replaced_under_streams(demo: Cluster, undisturbed: list[list[int]], times: Times) -> None:
    router = f"deployment/{DEPLOYMENT}-router"
    before = demo.uids()
    traffic = Traffic(URL, TOKENS)
    traffic.await_tokens(80)
    with steady(URL) as load:
        demo.eventually(lambda: load.answered, within=120)
        began = time.monotonic()
        demo.kubectl("rollout", "restart", router)
        demo.kubectl("rollout", "status", router, "--timeout=120s")
        times.note("the new one is ready after", time.monotonic() - began)
        assert [item.ids for item in traffic.finish()] == undisturbed
    load.check()
    assert demo.uids() == before
