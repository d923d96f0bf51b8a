"""The rights that the chart gives are those that are used, in both directions: the audit log knows.

The operator of one namespace is led through everything that makes it ask for something, that of the whole cluster
through what it asks for besides.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bireme.names import Label
from tests.controlplane.arguments import Settings
from tests.controlplane.cluster import API_ONLY, ControlPlane
from tests.controlplane.cluster import control_plane as running_control_plane
from tests.controlplane.crds import await_served
from tests.controlplane.polling import eventually
from tests.controlplane.programs import Program
from tests.operator.conftest import StartOperator
from tests.operator.deployments import MERGE, Deployments
from tests.operator.rights import LEASES, NODE_LEASES, Right, account, granted, pairs
from tests.operator.stage_kubelet import StageKubelet

NEVER_ASKED = {("bireme.dev", "inferencedeployments/finalizers", "update")}
"""Judged by admission when an owner reference blocks a deletion; no request of its own."""

APPLIED = {"services", "serviceaccounts", "configmaps", "deployments", "networkpolicies", "roles", "rolebindings"}


def is_implied(right: Right) -> bool:
    """To apply what is not there is a patch that needs the right to create; the log has the patch."""
    return right[1] in APPLIED and right[2] == "create"


@pytest.fixture(scope="module")
def api_server(programs: dict[Program, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane of this module's own, which writes down what it is asked."""
    root = tmp_path_factory.mktemp("audited")
    with running_control_plane(root, programs, Settings(audit=True), parts=API_ONLY) as plane:
        yield plane


@pytest.fixture(scope="module")
def crd(api_server: ControlPlane) -> ControlPlane:
    """It will know InferenceDeployments, see `establish`."""
    return api_server


def establish(plane: ControlPlane) -> None:
    path = str(Path(__file__).parents[2] / "crds" / "bireme.dev_inferencedeployments.yaml")
    assert plane.kubectl("apply", "-f", path).returncode == 0
    await_served(plane, "-f", path)


def asked(plane: ControlPlane, namespace: str) -> set[Right]:
    """What the operator's account has asked for, wherever that was, refused or not."""
    return {right for _, right in requests(plane, namespace)}


def requests(plane: ControlPlane, namespace: str) -> set[tuple[str, Right]]:
    """What the operator's account has asked for and where, nowhere if of the whole cluster."""
    found = set()
    written = plane.files.audit_log.read_text().rpartition("\n")[0]  # the last line may be half written
    for line in written.splitlines():
        event = json.loads(line)
        target = event.get("objectRef", {})
        if event["user"]["username"] != f"system:serviceaccount:{namespace}:operator":
            continue
        if "resource" in target:
            sub = f"/{target['subresource']}" if "subresource" in target else ""
            right = target.get("apiGroup", ""), target["resource"] + sub, event["verb"]
            found.add((target.get("namespace", ""), right))
    return found


def make_router_pod(plane: ControlPlane, namespace: str) -> None:
    """Stand in for the controller that makes the router's pods."""
    labels = {str(Label.DEPLOYMENT): "demo", str(Label.ROLE): "router"}
    body = {
        "metadata": {"name": "demo-router-0", "labels": labels},
        "spec": {"containers": [{"name": "router", "image": "i"}]},
    }
    plane.api.post(f"/api/v1/namespaces/{namespace}/pods", json=body).raise_for_status()


def test_every_right_is_used_and_nothing_else_is_asked_for(
    crd: ControlPlane, deployments: Deployments, kubelet: StageKubelet, start_operator: StartOperator, tmp_path: Path
) -> None:
    namespace = deployments.namespace
    make_router_pod(crd, namespace)
    operator = start_operator(kubeconfig=account(crd, namespace, tmp_path))
    eventually(lambda: "knows no inferencedeployments yet" in operator.log.read_text())
    establish(crd)
    deployments.create(replicas=1, stages=2)
    deployments.await_condition("Ready")
    deployments.delete_pod(deployments.living()[0, 1])
    eventually(lambda: deployments.incarnation(0, 1) == "2")
    deployments.await_condition("Ready")
    deployments.change(replicas=0)
    eventually(lambda: not deployments.pods())
    for number in range(12):  # more renderings than are kept
        deployments.change(engine={"maxRunningRequests": 100 + number})
        generation = deployments.get()["metadata"]["generation"]
        eventually(lambda wanted=generation: deployments.get()["status"]["observedGeneration"] == wanted)  # type: ignore[misc]
    deployments.change(replicas=1, placement={"scheduler": "Native"}, router={"port": 9000})
    deployments.await_condition("Ready")
    deployments.delete_pod(deployments.living()[0, 0])
    eventually(lambda: deployments.incarnation(0, 0) == deployments.incarnation(0, 1) != "")
    deployments.await_condition("Ready")
    held = granted("namespace") | pairs([LEASES])
    rights = {right for right in held if right not in NEVER_ASKED and not is_implied(right)}
    eventually(lambda: rights <= asked(crd, namespace))  # each is used, some only now and then
    assert asked(crd, namespace) - rights == set(), "rights that the chart does not give"
    assert "forbidden" not in operator.log.read_text()


def test_an_operator_of_the_whole_cluster_uses_what_it_is_given_besides_and_asks_for_nothing_else(
    crd: ControlPlane, deployments: Deployments, kubelet: StageKubelet, start_operator: StartOperator, tmp_path: Path
) -> None:
    establish(crd)
    namespace = deployments.namespace
    uncordon(crd, f"node-{namespace}")
    kubeconfig = account(crd, namespace, tmp_path, cluster=True)
    operator = start_operator(kubeconfig=kubeconfig, cluster=True)
    deployments.create(replicas=1, stages=2)
    deployments.await_condition("Ready")
    budget = f"/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets/demo-0"
    eventually(lambda: crd.api.get(budget).status_code == 200)
    assert operator.stop() == 0
    crd.api.patch(budget, json={"spec": {"minAvailable": 1}}, headers=MERGE).raise_for_status()
    operator = start_operator("another", kubeconfig=kubeconfig, cluster=True)
    eventually(lambda: crd.api.get(budget).json()["spec"]["minAvailable"] == 2)
    in_node_leases = pairs([NODE_LEASES])
    silence(crd, deployments.living()[0, 0])
    eventually(lambda: asked_in(crd, namespace, "kube-node-lease") == in_node_leases)
    deployments.change(replicas=0)
    eventually(lambda: crd.api.get(budget).status_code == 404)
    rights = granted("cluster") | in_node_leases
    eventually(lambda: rights <= asked(crd, namespace))
    assert asked(crd, namespace) - rights - granted("namespace") - pairs([LEASES]) == set(), "not given by the chart"
    assert asked_in(crd, namespace, "kube-node-lease") == in_node_leases
    assert "forbidden" not in operator.log.read_text()


def asked_in(plane: ControlPlane, namespace: str, where: str) -> set[Right]:
    """What the operator's account has asked for in one namespace."""
    return {right for place, right in requests(plane, namespace) if place == where}


def uncordon(plane: ControlPlane, node: str) -> None:
    """Nobody schedules here, and an operator that sees nodes reads a cordon as the wish to leave."""
    plane.api.patch(f"/api/v1/nodes/{node}", json={"spec": {"unschedulable": None}}, headers=MERGE).raise_for_status()


def silence(plane: ControlPlane, pod: dict[str, Any]) -> None:
    """Report an address of the pod at which nobody answers: its node is in doubt then."""
    url = f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}/status"
    nowhere = {"podIP": "127.255.255.253", "podIPs": [{"ip": "127.255.255.253"}]}
    plane.api.patch(url, json={"status": nowhere}, headers=MERGE).raise_for_status()
