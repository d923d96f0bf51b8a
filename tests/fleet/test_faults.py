"""Nodes fail in every way that an operator has to tell apart, and the control plane sees of it what it would see."""

from tests.controlplane.polling import eventually
from tests.fleet.fleet import Fleet
from tests.fleet.names import is_ready
from tests.fleet.node import Node
from tests.fleet.pod_bodies import TOLERATIONS, ask, server
from tests.fleet.processes import state

UNREACHABLE = "node.kubernetes.io/unreachable"
NOT_READY = "node.kubernetes.io/not-ready"


def placed(fleet: Fleet, namespace: str, name: str = "pod") -> Node:
    """Make a pod that no taint evicts, wait until it is ready, and return its node."""
    fleet.create(namespace, server(name, tolerations=TOLERATIONS, terminationGracePeriodSeconds=5))
    fleet.await_ready(namespace, name)
    return fleet.node_of(namespace, name)


def is_tainted(node: Node, key: str) -> bool:
    return {(key, "NoSchedule"), (key, "NoExecute")} <= node.taints()


def test_a_killed_node_takes_its_processes_along_and_is_tainted_unreachable(fleet: Fleet, namespace: str) -> None:
    node = placed(fleet, namespace)
    sandbox = fleet.sandbox(namespace, "pod")
    assert sandbox.pids()
    node.kill()
    assert sandbox.pids() == []
    eventually(lambda: is_tainted(node, UNREACHABLE))
    eventually(lambda: not is_ready(fleet.pod(namespace, "pod")))
    others = [other for other in fleet.nodes if other is not node]
    eventually(lambda: not any(is_tainted(other, UNREACHABLE) for other in others))


def test_a_node_that_returns_removes_what_was_deleted_and_starts_the_rest_anew(fleet: Fleet, namespace: str) -> None:
    node = placed(fleet, namespace, "deleted")
    second = server("kept", tolerations=TOLERATIONS, nodeName=node.name)
    fleet.create(namespace, second)
    before = fleet.await_ready(namespace, "kept")
    node.kill()
    path = f"/api/v1/namespaces/{namespace}/pods/deleted"
    fleet.plane.api.delete(path, params={"gracePeriodSeconds": "1"}).raise_for_status()
    eventually(lambda: is_tainted(node, UNREACHABLE))
    assert fleet.exists(namespace, "deleted"), "nobody but its kubelet may say that it is gone"
    node.boot()
    eventually(lambda: not fleet.exists(namespace, "deleted"))
    eventually(lambda: not is_tainted(node, UNREACHABLE))
    eventually(lambda: fleet.pod(namespace, "kept")["status"]["podIP"] != before["status"]["podIP"])
    after = fleet.await_ready(namespace, "kept")
    assert after["status"]["containerStatuses"][0]["restartCount"] == 1
    assert ask(after, "/env/POD_IP") == after["status"]["podIP"]


def test_a_frozen_node_goes_on_with_the_same_processes(fleet: Fleet, namespace: str) -> None:
    node = placed(fleet, namespace)
    pids = fleet.sandbox(namespace, "pod").pids()
    node.freeze()
    assert all(state(pid) == "T" for pid in pids)
    eventually(lambda: is_tainted(node, UNREACHABLE))
    node.thaw()
    eventually(lambda: node.taints() == set())
    pod = fleet.await_ready(namespace, "pod")
    assert fleet.sandbox(namespace, "pod").pids() == pids
    assert ask(pod, "/env/HOSTNAME") == "pod"
    assert pod["status"]["containerStatuses"][0]["restartCount"] == 0


def test_a_node_cut_off_from_the_api_serves_on_and_reports_later(fleet: Fleet, namespace: str) -> None:
    node = placed(fleet, namespace)
    pod = fleet.pod(namespace, "pod")
    node.partition_from_api()
    eventually(lambda: is_tainted(node, UNREACHABLE))
    assert ask(pod, "/env/HOSTNAME") == "pod"
    fleet.plane.api.delete(f"/api/v1/namespaces/{namespace}/pods/pod").raise_for_status()
    node.heal()
    eventually(lambda: not fleet.exists(namespace, "pod"))
    eventually(lambda: node.taints() == set())


def test_a_restarted_kubelet_finds_its_containers_again(fleet: Fleet, namespace: str) -> None:
    node = placed(fleet, namespace)
    before, pids = fleet.pod(namespace, "pod"), fleet.sandbox(namespace, "pod").pids()
    node.restart_kubelet()
    ask(before, "/unwell")  # seen only by a kubelet that probes the container it found
    eventually(lambda: not is_ready(fleet.pod(namespace, "pod")))
    after = fleet.pod(namespace, "pod")
    assert fleet.sandbox(namespace, "pod").pids() == pids
    assert after["status"]["podIP"] == before["status"]["podIP"]
    assert after["status"]["containerStatuses"][0]["restartCount"] == 0


def test_a_container_that_crashed_while_its_kubelet_was_away_is_restarted_by_the_next(
    fleet: Fleet, namespace: str
) -> None:
    node = placed(fleet, namespace)
    sandbox = fleet.sandbox(namespace, "pod")
    node.stop_kubelet()
    process = sandbox.containers["c"].process
    assert process is not None
    process.kill()
    eventually(lambda: not sandbox.pids())
    node.start_kubelet()
    eventually(lambda: fleet.pod(namespace, "pod")["status"]["containerStatuses"][0]["restartCount"] == 1)
    fleet.await_ready(namespace, "pod")


def test_a_node_that_says_not_ready_is_tainted_so_and_freed_again(fleet: Fleet, namespace: str) -> None:
    node = placed(fleet, namespace)
    node.make_not_ready()
    eventually(lambda: is_tainted(node, NOT_READY))
    assert ask(fleet.pod(namespace, "pod"), "/env/HOSTNAME") == "pod"
    node.make_ready()
    eventually(lambda: node.taints() == set())
    fleet.await_ready(namespace, "pod")


def test_nothing_is_placed_on_a_cordoned_node(fleet: Fleet, namespace: str) -> None:
    for node in fleet.nodes:
        node.cordon()
    fleet.create(namespace, server("pod"))
    # Only then the scheduler has heard of every cordon.
    words = f"{len(fleet.nodes)} node(s) were unschedulable"
    eventually(lambda: words in why_unscheduled(fleet, namespace, "pod"))
    kept = fleet.nodes[0]
    kept.uncordon()
    fleet.await_ready(namespace, "pod")
    assert fleet.node_of(namespace, "pod") is kept


def why_unscheduled(fleet: Fleet, namespace: str, name: str) -> str:
    """What the scheduler says of a pod that it has found no node for."""
    conditions = fleet.pod(namespace, name)["status"].get("conditions", [])
    return next((str(each.get("message", "")) for each in conditions if each["type"] == "PodScheduled"), "")


def test_a_pod_without_a_toleration_leaves_a_node_with_a_noexecute_taint(fleet: Fleet, namespace: str) -> None:
    fleet.create(namespace, server("pod", terminationGracePeriodSeconds=5))
    fleet.await_ready(namespace, "pod")
    fleet.node_of(namespace, "pod").taint("maintenance", "NoExecute")
    eventually(lambda: not fleet.exists(namespace, "pod"))
