"""What the operator counts as free: what every pod of the cluster asks for, and what it has just given away itself."""

import asyncio
from typing import Any

import pytest

from bireme.names import Label
from bireme_operator.kube.client import Kube
from bireme_operator.kube.errors import Unavailable
from bireme_operator.kube.resources import Resource
from bireme_operator.plan.places import HOSTNAME, Needs
from bireme_operator.plan.quantities import amounts
from bireme_operator.render.gang import GATE
from bireme_operator.shell.places import Places, needs_of
from bireme_operator.shell.requests import requests_of
from bireme_operator.shell.store import Store

GPU = "nvidia.com/gpu"


class Server(Kube):
    """An API server that knows two lists."""

    def __init__(self, nodes: list[dict[str, Any]], pods: list[dict[str, Any]]) -> None:
        self.lists = {"nodes": nodes, "pods": pods}
        self.asked = 0
        self.selectors: set[str] = set()
        self.sick = False

    async def list(self, resource: Resource, namespace: str | None, selector: str = "") -> dict[str, Any]:
        self.asked += 1
        self.selectors.add(selector)
        if self.sick:
            raise Unavailable("busy")
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


def ours(uid: str, group: str, gpus: int, phase: str = "Running", **spec: Any) -> dict[str, Any]:
    body = pod(uid, gpus, phase, **spec)
    labels = {Label.STAGE.value: "0", Label.GROUP_INDEX.value: group, Label.INCARNATION.value: "1"}
    labels[Label.DEPLOYMENT.value] = "demo"
    owner = {"name": "demo", "uid": "owner", "controller": True}
    meta = {"name": uid, "namespace": "n", "resourceVersion": "1", "labels": labels, "ownerReferences": [owner]}
    return {**body, "metadata": {**body["metadata"], **meta}}


async def test_our_own_pods_are_not_read_but_known_and_count_at_once() -> None:
    unseen = ours("2", "0", 2, nodeName="a")
    store, server = Store(lambda: 0.0), Server([node("a"), node("b")], [pod("1", 1, nodeName="a"), unseen])
    now = 0.0
    places = Places(server, lambda: now, store)
    store.see_pod(ours("3", "1", 3, "Pending", nodeSelector={HOSTNAME: "b"}))
    store.see_pod(ours("4", "2", 4, "Pending", nodeSelector={HOSTNAME: "b"}, schedulingGates=[{"name": GATE}]))
    store.see_pod(ours("5", "3", 5, "Failed", nodeName="b"))
    assert await free(places) == {"a": 5, "b": 5}
    assert server.selectors == {""}, "the watch may not have shown all of them yet"
    server.lists["pods"], now = [pod("1", 1, nodeName="a")], 3.0
    assert await free(places) == {"a": 5, "b": 5}
    assert server.selectors == {"", "!bireme.dev/stage"}
    places.hold("6", "b", Needs(amounts({GPU: 4})))
    assert await free(places) == {"a": 5, "b": 1}
    store.see_pod(ours("6", "4", 4, "Pending", nodeSelector={HOSTNAME: "b"}))
    assert await free(places) == {"a": 5, "b": 1}, "it shows, so it is not held any more"
    assert server.asked == 4


def orphan(uid: str, gpus: int, phase: str = "Running", **spec: Any) -> dict[str, Any]:
    body = ours(uid, "0", gpus, phase, **spec)
    del body["metadata"]["ownerReferences"]
    return body


async def test_what_was_given_to_a_pod_that_is_gone_is_free_at_once() -> None:
    store, server = Store(lambda: 0.0), Server([node("a")], [])
    places = Places(server, lambda: 0.0, store)
    let_go = ours("1", "0", 4, "Pending", nodeSelector={HOSTNAME: "a"})
    store.see_pod(let_go)
    places.hold("1", "a", Needs(amounts({GPU: 4})))
    store.see_pod(let_go, gone=True)  # before anybody looked
    assert await free(places) == {"a": 8}


async def test_a_stage_pod_that_is_nobody_s_takes_room_from_the_first_look_of_an_operator_until_it_ends() -> None:
    odd = orphan("2", 2, nodeName="b")
    odd["metadata"]["labels"] = {Label.STAGE.value: "mine"}
    left = orphan("1", 4, nodeName="a")
    store, server, now = Store(lambda: 0.0), Server([node("a"), node("b")], [left, odd]), 0.0
    places = Places(server, lambda: now, store)
    assert await free(places) == {"a": 4, "b": 6}
    server.lists["pods"], now = [], 3.0  # from now on only those of others are read
    assert await free(places) == {"a": 4, "b": 6}
    left["status"]["phase"], left["metadata"]["resourceVersion"] = "Failed", "2"
    store.see_pod(left)
    odd["metadata"]["resourceVersion"] = "3"
    store.see_pod(odd, gone=True)
    assert await free(places) == {"a": 8, "b": 8}


async def test_a_stage_pod_that_is_orphaned_while_the_operator_runs_takes_room_until_it_ends() -> None:
    store, server = Store(lambda: 0.0), Server([node("a")], [])
    places = Places(server, lambda: 0.0, store)
    store.see_pod(ours("1", "0", 4, nodeName="a"))
    left = orphan("1", 4, nodeName="a")
    left["metadata"]["resourceVersion"] = "2"
    store.see_pod(left)
    assert await free(places) == {"a": 4}
    ended = orphan("1", 4, "Succeeded", nodeName="a")
    ended["metadata"]["resourceVersion"] = "3"
    store.see_pod(ended)
    assert await free(places) == {"a": 8}


async def test_who_looks_often_is_not_kept_waiting_by_a_read_nor_ended_by_one_that_fails() -> None:
    now = 0.0
    server = Server([node("a")], [])
    places = Places(server, lambda: now)
    assert await free(places) == {"a": 8}
    server.lists["pods"] = [pod("1", 1, nodeName="a")]
    server.sick, now = True, 1.5
    assert await free(places) == {"a": 8}
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert server.asked == 4
    now = 2.5
    with pytest.raises(Unavailable):
        await places.look()
    server.sick = False
    assert await free(places) == {"a": 7}


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
