"""Groups come and go with the load that a real router reports; a HorizontalPodAutoscaler's number is left alone."""

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from bireme.names import Label
from bireme.process import child_environment
from bireme.wire.routes import Routes, write_routes
from tests.controlplane.cluster import ControlPlane
from tests.controlplane.polling import eventually
from tests.operator.conftest import StartOperator
from tests.operator.deployments import MERGE, Deployments
from tests.operator.stage_kubelet import StageKubelet

HPA = {"fieldManager": "kube-controller-manager"}


@pytest.fixture
def router(tmp_path: Path) -> Iterator[httpx.URL]:
    """A router that knows no group: who asks it, waits."""
    routes = tmp_path / "routes.json"
    routes.write_bytes(write_routes(Routes(1, ("demo",), ())))
    command = [sys.executable, "-m", "bireme_router.main", f"--routes={routes}", "--host=127.0.0.1", "--port=0"]
    with subprocess.Popen(command, env=child_environment({}), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield httpx.URL(process.stdout.readline().split()[-1])
        process.kill()


def ask(router: httpx.URL) -> socket.socket:
    """A request that waits in the router until its connection is closed."""
    body = json.dumps({"model": "demo", "messages": [{"role": "user", "content": "Is anybody there?"}]})
    connection = socket.create_connection((router.host, router.port))
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: router\r\ncontent-length: {len(body)}\r\n"
    connection.sendall(f"{head}content-type: application/json\r\n\r\n{body}".encode())
    return connection


def show_router(plane: ControlPlane, namespace: str) -> None:
    """Stand in for the controller and the kubelet that make and run the router's pod."""
    labels = {str(Label.DEPLOYMENT): "demo", str(Label.ROLE): "router"}
    pod = {"metadata": {"name": "router", "labels": labels}, "spec": {"containers": [{"name": "router", "image": "i"}]}}
    url = f"/api/v1/namespaces/{namespace}/pods"
    plane.api.post(url, json=pod).raise_for_status()
    status = {"status": {"podIP": "127.0.0.1", "podIPs": [{"ip": "127.0.0.1"}]}}
    plane.api.patch(f"{url}/router/status", json=status, headers=MERGE).raise_for_status()


def told(deployments: Deployments, field: str) -> Any:
    return deployments.get().get("status", {}).get(field)


def test_a_waiting_request_brings_the_first_group_and_idleness_takes_it_away(
    deployments: Deployments, kubelet: StageKubelet, start_operator: StartOperator, router: httpx.URL
) -> None:
    limits = {"minReplicas": 0, "maxReplicas": 2, "targetQueuedRequests": 4, "idleToZeroSeconds": 1}
    deployments.create(replicas=0, stages=2, autoscaling=limits, router={"port": router.port})
    show_router(deployments.plane, deployments.namespace)
    start_operator()
    eventually(lambda: told(deployments, "observedGeneration") == 1)
    assert told(deployments, "desiredReplicas") == 0
    assert not deployments.pods()
    with ask(router):
        eventually(lambda: told(deployments, "readyReplicas") == 1)
        assert len(kubelet.started) == 2
    eventually(lambda: told(deployments, "desiredReplicas") == 0 and not deployments.pods())
    assert deployments.get()["spec"]["replicas"] == 0, "the spec is its owner's"


def test_the_number_that_an_hpa_sets_is_followed_and_two_autoscalers_are_told_of(
    deployments: Deployments, kubelet: StageKubelet, start_operator: StartOperator, router: httpx.URL
) -> None:
    limits = {"minReplicas": 1, "maxReplicas": 4, "targetQueuedRequests": 1}
    deployments.create(replicas=1, stages=1, autoscaling=limits, router={"port": router.port})
    show_router(deployments.plane, deployments.namespace)
    start_operator()
    deployments.await_condition("Ready")
    deployments.scale(3, **HPA)
    eventually(lambda: told(deployments, "readyReplicas") == 3)
    stalled = deployments.await_condition("Stalled")
    assert stalled["reason"] == "TwoAutoscalers"
    assert "kube-controller-manager sets spec.replicas" in stalled["message"]
    deployments.change(autoscaling=None)
    deployments.await_condition("Stalled", "False")
    deployments.await_condition("Ready")
    assert len(deployments.living()) == 3
    body = deployments.get()
    assert body["spec"]["replicas"] == 3
    writers = {one["manager"] for one in body["metadata"]["managedFields"] if "f:spec" in one["fieldsV1"]}
    assert "kube-controller-manager" in writers
    assert not any(writer.startswith("bireme") for writer in writers), "the spec is its owner's"
    deployments.change(autoscaling=limits)
    assert "set another number" in deployments.await_condition("Stalled")["message"]
    deployments.scale(2)
    deployments.await_condition("Stalled", "False")


def test_the_scale_subresource_tells_an_hpa_how_many_groups_there_are_and_which_pods_lead_them(
    deployments: Deployments, kubelet: StageKubelet, start_operator: StartOperator
) -> None:
    start_operator()
    deployments.create(replicas=1, stages=2)
    deployments.await_condition("Ready")
    deployments.scale(2)
    eventually(lambda: told(deployments, "readyReplicas") == 2)
    seen = deployments.plane.api.get(f"{deployments.url}/demo/scale").raise_for_status().json()
    assert seen["spec"]["replicas"] == seen["status"]["replicas"] == 2
    query = {"labelSelector": seen["status"]["selector"]}
    pods = deployments.plane.api.get(f"/api/v1/namespaces/{deployments.namespace}/pods", params=query).json()["items"]
    assert sorted(pod["metadata"]["labels"][Label.STAGE] for pod in pods) == ["0", "0"]
