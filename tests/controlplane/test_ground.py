"""The ground holds what tests of an operator stand on: each part of the control plane does its work."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import pytest

from tests.controlplane.cluster import ControlPlane
from tests.controlplane.polling import eventually

UNREACHABLE = "node.kubernetes.io/unreachable"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
SCHEDULING = "/apis/scheduling.k8s.io/v1beta1"


@dataclass(frozen=True)
class Node:
    """A node with nothing behind it, whose Lease lives as long as somebody renews it."""

    plane: ControlPlane
    name: str

    def renew(self) -> bool:
        """Return whether it could: the API server makes the namespace of the leases some time after it is ready."""
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        lease = {"metadata": {"name": self.name}, "spec": {"holderIdentity": self.name, "renewTime": now}}
        changed = self.plane.api.patch(f"{LEASES}/{self.name}", json=lease, headers=MERGE)
        if changed.status_code == 404:
            changed = self.plane.api.post(LEASES, json=lease)
        return changed.is_success and self._says_ready()

    def _says_ready(self) -> bool:
        """Say again that it is ready where a Lease that stood still, on a machine that did, has made that unknown."""
        status = self.plane.api.get(f"/api/v1/nodes/{self.name}").raise_for_status().json()["status"]
        if READY["status"] in [one["status"] for one in status["conditions"] if one["type"] == READY["type"]]:
            return True
        url, body = f"/api/v1/nodes/{self.name}/status", {"status": {"conditions": [READY]}}
        return self.plane.api.patch(url, json=body, headers=MERGE).is_success

    def taints(self) -> set[tuple[str, str]]:
        found = self.plane.api.get(f"/api/v1/nodes/{self.name}").raise_for_status().json()
        return {(taint["key"], taint["effect"]) for taint in found["spec"].get("taints", [])}


MERGE = {"content-type": "application/merge-patch+json"}
READY = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "ready"}


@pytest.fixture
def pool() -> str:
    """A label value that keeps the nodes of a test for its own pods."""
    return f"pool-{uuid4().hex[:8]}"


@pytest.fixture
def nodes(control_plane: ControlPlane, pool: str) -> Iterator[list[Node]]:
    """The nodes that the test has made with `join`, gone afterwards."""
    joined: list[Node] = []
    yield joined
    for node in joined:
        control_plane.api.delete(f"/api/v1/nodes/{node.name}").raise_for_status()
        control_plane.api.delete(f"{LEASES}/{node.name}")


def join(plane: ControlPlane, nodes: list[Node], pool: str) -> Node:
    """Make a ready node of one CPU, as a kubelet registers itself."""
    node = Node(plane, f"{pool}-{len(nodes)}")
    size = {"cpu": "1", "memory": "1Gi", "pods": "10"}
    body = {
        "metadata": {"name": node.name, "labels": {"pool": pool}},
        "status": {
            "capacity": size,
            "allocatable": size,
            "conditions": [READY],
        },
    }
    plane.api.post("/api/v1/nodes", json=body).raise_for_status()
    nodes.append(node)
    eventually(node.renew)
    return node


def make_pod(plane: ControlPlane, namespace: str, pool: str, name: str, **spec: Any) -> str:
    """Make a pod that needs more than half a node of the pool, and return its address."""
    container = {"name": "c", "image": "none", "resources": {"requests": {"cpu": "600m"}}}
    body = {"metadata": {"name": name}, "spec": {"nodeSelector": {"pool": pool}, "containers": [container], **spec}}
    plane.api.post(f"/api/v1/namespaces/{namespace}/pods", json=body).raise_for_status()
    return f"/api/v1/namespaces/{namespace}/pods/{name}"


def bound_to(plane: ControlPlane, pod: str, nodes: list[Node]) -> str | None:
    """Return the node of a pod, while the nodes are kept alive."""
    for node in nodes:
        node.renew()
    name: str | None = plane.api.get(pod).raise_for_status().json()["spec"].get("nodeName")
    return name


def judged_unschedulable(plane: ControlPlane, pod: str, nodes: list[Node]) -> bool:
    for node in nodes:
        node.renew()
    conditions = plane.api.get(pod).raise_for_status().json()["status"].get("conditions", [])
    return any(c["type"] == "PodScheduled" and c["status"] == "False" for c in conditions)


def test_the_scheduler_binds_a_pod_to_a_node(
    control_plane: ControlPlane, namespace: str, pool: str, nodes: list[Node]
) -> None:
    node = join(control_plane, nodes, pool)
    pod = make_pod(control_plane, namespace, pool, "alone")
    assert eventually(lambda: bound_to(control_plane, pod, nodes)) == node.name


def test_a_gang_is_bound_together_or_not_at_all(
    control_plane: ControlPlane, namespace: str, pool: str, nodes: list[Node]
) -> None:
    join(control_plane, nodes, pool)
    gang = {"metadata": {"name": "gang"}, "spec": {"schedulingPolicy": {"gang": {"minCount": 2}}}}
    control_plane.api.post(f"{SCHEDULING}/namespaces/{namespace}/podgroups", json=gang).raise_for_status()
    member = {"schedulingGroup": {"podGroupName": "gang"}}
    pods = [make_pod(control_plane, namespace, pool, name, **member) for name in ("first", "second")]
    eventually(lambda: all(judged_unschedulable(control_plane, pod, nodes) for pod in pods))
    assert [bound_to(control_plane, pod, nodes) for pod in pods] == [None, None], "half a gang would hold devices"
    join(control_plane, nodes, pool)

    def homes() -> list[str] | None:
        found = [bound_to(control_plane, pod, nodes) for pod in pods]
        return None if None in found else [name for name in found if name]

    assert sorted(eventually(homes)) == [node.name for node in nodes]


def test_a_node_is_tainted_unreachable_when_its_lease_stops(
    control_plane: ControlPlane, pool: str, nodes: list[Node]
) -> None:
    silent, living = join(control_plane, nodes, pool), join(control_plane, nodes, pool)

    def tainted_alone() -> bool:
        living.renew()
        return {(UNREACHABLE, "NoSchedule"), (UNREACHABLE, "NoExecute")} <= silent.taints() and not living.taints()

    eventually(tainted_alone)


def test_a_dependent_is_collected_when_its_owner_is_gone(control_plane: ControlPlane, namespace: str) -> None:
    url = f"/api/v1/namespaces/{namespace}/configmaps"
    owner = control_plane.api.post(url, json={"metadata": {"name": "owner"}}).raise_for_status().json()["metadata"]
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner["uid"]}
    for name, references in (("dependent", [reference]), ("stranger", [])):
        body = {"metadata": {"name": name, "ownerReferences": references}}
        control_plane.api.post(url, json=body).raise_for_status()
    control_plane.api.delete(f"{url}/owner").raise_for_status()
    eventually(lambda: control_plane.api.get(f"{url}/dependent").status_code == 404)
    assert control_plane.api.get(f"{url}/stranger").status_code == 200


def test_the_native_gang_api_is_served(api_server: ControlPlane) -> None:
    served = api_server.api.get(SCHEDULING).raise_for_status().json()["resources"]
    assert {"podgroups", "workloads"} <= {resource["name"] for resource in served}


def test_rights_are_judged_by_rbac(api_server: ControlPlane) -> None:
    with api_server.client(api_server.users.scheduler) as scheduler:
        eventually(lambda: scheduler.get("/api/v1/nodes").status_code == 200)
        assert scheduler.get("/api/v1/secrets").status_code == 403


def test_a_service_account_s_token_is_taken(api_server: ControlPlane, namespace: str) -> None:
    url = f"/api/v1/namespaces/{namespace}/serviceaccounts/default/token"
    token = api_server.api.post(url, json={"spec": {}}).raise_for_status().json()["status"]["token"]
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    path = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
    who = api_server.api.post(path, json=review, headers={"authorization": f"Bearer {token}"}).raise_for_status().json()
    assert who["status"]["userInfo"]["username"] == f"system:serviceaccount:{namespace}:default"


def test_the_restricted_pod_security_level_is_enforced(api_server: ControlPlane, namespace: str) -> None:
    labels = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}
    api_server.api.patch(f"/api/v1/namespaces/{namespace}", json=labels, headers=MERGE).raise_for_status()
    container = {"name": "c", "image": "none", "securityContext": {"privileged": True}}
    body = {"metadata": {"name": "root"}, "spec": {"containers": [container]}}

    def refused() -> str | None:
        """Whoever judges a pod hears of the namespace's label later than we do."""
        url = f"/api/v1/namespaces/{namespace}/pods"
        answer = api_server.api.post(url, json=body, params={"dryRun": "All"})
        return str(answer.json()["message"]) if answer.status_code == 403 else None

    assert "PodSecurity" in eventually(refused)
