"""What the operator counts as free: what every pod of the cluster asks for, and what it has just given away itself."""

from typing import Any

from bireme_operator.kube.client import Kube
from bireme_operator.kube.resources import Resource
from bireme_operator.plan.places import HOSTNAME, Needs
from bireme_operator.plan.quantities import amounts
from bireme_operator.shell.places import Places, needs_of, requests_of

GPU = "nvidia.com/gpu"


class Server(Kube):
    """An API server that knows two lists."""

    def __init__(self, nodes: list[dict[str, Any]], pods: list[dict[str, Any]]) -> None:
        self.lists = {"nodes": nodes, "pods": pods}
        self.asked = 0

    async def list(self, resource: Resource, namespace: str | None, selector: str = "") -> dict[str, Any]:
        self.asked += 1
        return {"items": self.lists[resource.plural]}


def node(name: str, gpus: int = 8, ready: str = "True", **spec: Any) -> dict[str, Any]:
    status = {
        "allocatable": {GPU: str(gpus), "pods": "110"},
        "conditions": [{"type": "Ready", "status": ready}],
    }
    return {"metadata": {"name": name, "labels": {HOSTNAME: name}}, "spec": spec, "status": status}


def pod(uid: str, gpus: int, phase: str = "Running", **spec: Any) -> dict[str, Any]:
    containers = [{"name": "c", "resources": {"limits": {GPU: str(gpus)}}}]
    return {"metadata": {"uid": uid}, "spec": {"containers": containers, **spec}, "status": {"phase": phase}}


async def free(places: Places) -> dict[str, float]:
    return {one.name: one.free[GPU] / 1000 for one in await places.look()}


async def test_every_pod_counts_that_has_not_ended_and_so_does_one_that_was_let_go_for_a_node() -> None:
    pods = [
        pod("1", 2, nodeName="a"),
        pod("2", 4, "Succeeded", nodeName="a"),
        pod("3", 1, "Pending", nodeSelector={HOSTNAME: "b"}),
        pod("4", 8, "Pending", nodeSelector={HOSTNAME: "b"}, schedulingGates=[{"name": "x"}]),
    ]
    assert await free(Places(Server([node("a"), node("b")], pods), lambda: 0.0)) == {"a": 6, "b": 7}


async def test_nodes_that_take_no_pods_are_left_out() -> None:
    nodes = [node("a"), node("b", unschedulable=True), node("c", ready="Unknown")]
    assert await free(Places(Server(nodes, []), lambda: 0.0)) == {"a": 8}


async def test_what_was_given_away_is_held_until_it_shows_or_for_half_a_minute() -> None:
    now = 0.0
    server = Server([node("a")], [])
    places = Places(server, lambda: now)
    places.hold("1", "a", Needs(amounts({GPU: 4})))
    assert await free(places) == {"a": 4}
    assert await free(places) == {"a": 4}
    assert server.asked == 2, "both lists once within a moment"
    server.lists["pods"] = [pod("1", 4, nodeName="a")]
    now = 2.0
    assert await free(places) == {"a": 4}
    places.hold("2", "a", Needs(amounts({GPU: 4})))
    assert await free(places) == {"a": 0}
    now = 40.0
    assert await free(places) == {"a": 4}


def test_a_pod_asks_for_all_its_containers_or_for_its_largest_init_container() -> None:
    spec = {
        "containers": [{"resources": {"requests": {"cpu": "1"}}}, {"resources": {"requests": {"cpu": "500m"}}}],
        "initContainers": [{"resources": {"requests": {"cpu": "3", "memory": "1Ki"}}}],
        "overhead": {"cpu": "100m"},
    }
    assert requests_of(spec) == {"cpu": 3100, "memory": 1024_000}


def test_what_keeps_a_pod_off_a_node_is_read_from_its_rendering() -> None:
    term = {"matchExpressions": [{"key": "gpu", "operator": "Exists"}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    spec = {"containers": [], "affinity": {"nodeAffinity": required}, "tolerations": [{"operator": "Exists"}]}
    assert needs_of({"spec": spec}) == Needs({}, {}, (term,), ({"operator": "Exists"},))
