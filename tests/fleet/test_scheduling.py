"""The real scheduler places pods on simulated devices and racks, gangs included, and on KWOK's nodes by the hundred."""

from collections.abc import Callable
from typing import Any

from tests.controlplane.polling import eventually
from tests.fleet.api import Object
from tests.fleet.fleet import Fleet
from tests.fleet.names import is_ready
from tests.fleet.node import GPU, RACK, Shape
from tests.fleet.pod_bodies import server

GANGS = "/apis/scheduling.k8s.io/v1beta1"


def with_gpus(name: str, count: int, **spec: Any) -> Object:
    resources = {"resources": {"limits": {GPU: str(count)}}}
    return server(name, container=resources, **spec)


def is_unschedulable(fleet: Fleet, namespace: str, name: str) -> bool:
    conditions = fleet.pod(namespace, name)["status"].get("conditions", [])
    return any(each["type"] == "PodScheduled" and each["status"] == "False" for each in conditions)


def test_devices_are_counted_by_the_scheduler(fleet: Fleet, namespace: str) -> None:
    for index in range(5):
        fleet.create(namespace, with_gpus(f"pod-{index}", 8))
    names = [f"pod-{index}" for index in range(5)]
    # Nodes are tainted for a moment after they register, so any pod may be refused at first.
    eventually(lambda: sum("nodeName" in fleet.pod(namespace, name)["spec"] for name in names) == 4)
    bound = [name for name in names if "nodeName" in fleet.pod(namespace, name)["spec"]]
    for name in bound:
        fleet.await_ready(namespace, name)
    assert len({fleet.node_of(namespace, name).name for name in bound}) == 4
    (left,) = set(names) - set(bound)
    eventually(lambda: is_unschedulable(fleet, namespace, left))


def test_a_gang_that_does_not_fit_holds_no_device_and_starts_together_when_it_does(
    empty_fleet: Fleet, namespace: str
) -> None:
    fleet = empty_fleet
    for gpus in (0, 0, 4, 8):  # from the start: the scheduler hears of a change later than we make it
        fleet.add_node(Shape({}, gpus))
    gang = {"metadata": {"name": "gang"}, "spec": {"schedulingPolicy": {"gang": {"minCount": 2}}}}
    fleet.plane.api.post(f"{GANGS}/namespaces/{namespace}/podgroups", json=gang).raise_for_status()
    for name in ("first", "second"):
        fleet.create(namespace, with_gpus(name, 8, schedulingGroup={"podGroupName": "gang"}))
    eventually(lambda: all(is_unschedulable(fleet, namespace, name) for name in ("first", "second")))
    fleet.nodes[2].set_gpus(8)
    for name in ("first", "second"):
        fleet.await_ready(namespace, name)
    homes = {fleet.node_of(namespace, name).name for name in ("first", "second")}
    assert homes == {fleet.nodes[2].name, fleet.nodes[3].name}


def test_racks_are_labels_that_pods_can_ask_for(fleet: Fleet, namespace: str) -> None:
    fleet.create(namespace, with_gpus("pod", 1, nodeSelector={RACK: "rack-1"}))
    fleet.await_ready(namespace, "pod")
    assert fleet.node_of(namespace, "pod") in fleet.nodes[2:]


def test_pods_on_kwok_nodes_are_ready_and_go_without_a_process(
    fleet: Fleet, namespace: str, kwok_nodes: Callable[[int], list[str]]
) -> None:
    names = kwok_nodes(20)
    pods = [f"light-{index}" for index in range(40)]
    for pod in pods:
        fleet.create(namespace, with_gpus(pod, 4, nodeSelector={"type": "kwok"}))
    path = f"/api/v1/namespaces/{namespace}/pods"

    def found() -> list[Object]:
        listed: list[Object] = fleet.plane.api.get(path).raise_for_status().json()["items"]
        return listed

    eventually(lambda: sum(is_ready(pod) for pod in found()) == len(pods))
    assert {pod["spec"]["nodeName"] for pod in found()} == set(names)
    assert all(pod["status"]["podIP"].startswith("127.") for pod in found())
    assert not any(node.sandboxes for node in fleet.nodes), "each kind of node keeps to its own pods"
    fleet.plane.api.delete(path).raise_for_status()
    eventually(lambda: not found())
