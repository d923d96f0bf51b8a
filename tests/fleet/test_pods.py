"""The simulated kubelet treats a pod as a real one does: tests of an operator stand on this."""

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from tests.controlplane.cluster import ControlPlane
from tests.controlplane.polling import eventually
from tests.fleet.api import Object
from tests.fleet.fleet import Fleet
from tests.fleet.names import is_ready
from tests.fleet.node import Shape
from tests.fleet.pod_bodies import ask, container_status, crash, delete, post, server
from tests.fleet.settings import Settings


def test_a_pod_becomes_ready_and_answers_at_its_own_address(fleet: Fleet, namespace: str) -> None:
    for name in ("one", "two"):
        fleet.create(namespace, server(name))
    one, two = (fleet.await_ready(namespace, name) for name in ("one", "two"))
    assert one["status"]["podIP"] != two["status"]["podIP"]
    assert ask(one, "/env/HOSTNAME") == "one"
    assert ask(two, "/env/POD_IP") == two["status"]["podIP"]
    assert one["status"]["phase"] == "Running"


def test_readiness_follows_the_probe_and_restarts_nothing(fleet: Fleet, namespace: str) -> None:
    fleet.create(namespace, server("pod"))
    pod = fleet.await_ready(namespace, "pod")
    ask(pod, "/unwell")
    eventually(lambda: not is_ready(fleet.pod(namespace, "pod")))
    assert container_status(fleet, namespace, "pod")["restartCount"] == 0


def test_a_failed_liveness_probe_restarts_the_container(fleet: Fleet, namespace: str) -> None:
    # Slow to start, or to answer, is not unwell.
    probe = {"httpGet": {"path": "/healthz", "port": "http"}, "periodSeconds": 1, "timeoutSeconds": 30}
    startup = {"startupProbe": probe | {"failureThreshold": 60}}
    fleet.create(namespace, server("pod", container={"livenessProbe": probe | {"failureThreshold": 3}} | startup))
    pod = fleet.await_ready(namespace, "pod")
    ask(pod, "/unwell")
    eventually(lambda: container_status(fleet, namespace, "pod")["restartCount"] == 1)
    assert fleet.await_ready(namespace, "pod")["status"]["podIP"] == pod["status"]["podIP"]


def test_a_crashing_container_restarts_with_back_off_and_is_counted(fleet: Fleet, namespace: str) -> None:
    fleet.create(namespace, server("pod"))
    crash(fleet.await_ready(namespace, "pod"), 3)

    eventually(lambda: container_status(fleet, namespace, "pod")["restartCount"] == 1)
    pod = fleet.await_ready(namespace, "pod")
    assert container_status(fleet, namespace, "pod")["lastState"]["terminated"]["exitCode"] == 3
    crash(pod, 4)
    eventually(lambda: container_status(fleet, namespace, "pod")["restartCount"] == 2)
    container = fleet.sandbox(namespace, "pod").containers["c"]
    assert container.ended is not None
    assert container.started_at - container.ended.finished_at >= fleet.settings.crash_base_seconds
    assert container.delay_s == 2 * fleet.settings.crash_base_seconds


@pytest.fixture
def patient(control_plane: ControlPlane, fleet_settings: Settings) -> Iterator[Fleet]:
    """A node on which a container that has crashed twice does not start again while a test looks."""
    made = Fleet(control_plane, replace(fleet_settings, crash_base_seconds=600.0))
    made.add_node(Shape({}))
    yield made
    made.close()


def test_a_container_that_waits_for_its_next_start_says_so(patient: Fleet, namespace: str) -> None:
    patient.create(namespace, server("pod"))
    crash(patient.await_ready(namespace, "pod"), 3)
    eventually(lambda: container_status(patient, namespace, "pod")["restartCount"] == 1)
    crash(patient.await_ready(namespace, "pod"), 4)

    def waits() -> bool:
        waiting: Object = container_status(patient, namespace, "pod")["state"].get("waiting", {})
        return "CrashLoopBackOff" in waiting.values()

    eventually(waits)
    assert container_status(patient, namespace, "pod")["restartCount"] == 1


def test_a_container_that_never_restarts_makes_the_pod_failed_or_succeeded(fleet: Fleet, namespace: str) -> None:
    for name, code in (("good", 0), ("bad", 64)):
        pod = server(name, restartPolicy="Never")
        pod["spec"]["containers"][0] |= {"args": ["-c", f"import sys; sys.exit({code})"], "readinessProbe": None}
        fleet.create(namespace, pod)
    eventually(lambda: fleet.pod(namespace, "good")["status"]["phase"] == "Succeeded")
    eventually(lambda: fleet.pod(namespace, "bad")["status"]["phase"] == "Failed")
    assert container_status(fleet, namespace, "bad")["state"]["terminated"]["exitCode"] == 64


def test_a_deleted_pod_runs_its_hook_gets_sigterm_and_ends_within_its_grace(
    fleet: Fleet, namespace: str, tmp_path: Path
) -> None:
    hook = {"preStop": {"httpGet": {"path": "/prestop", "port": "http"}}}
    leave = tmp_path / "leave"
    container = {"lifecycle": hook, "env": [{"name": "LEAVE", "value": str(leave)}]}
    fleet.create(namespace, server("pod", linger=600, container=container, terminationGracePeriodSeconds=600))
    fleet.await_ready(namespace, "pod")
    sandbox = fleet.sandbox(namespace, "pod")
    delete(fleet, namespace, "pod")
    eventually(lambda: "SIGTERM" in fleet.log(namespace, "pod", "c"))
    assert fleet.pod(namespace, "pod")["metadata"]["deletionTimestamp"], "it stays while its process lingers"
    leave.touch()
    eventually(lambda: not fleet.exists(namespace, "pod"))
    assert sandbox.log("c").read_text().split() == ["started", "preStop", "SIGTERM"]
    assert sandbox.pids() == []


def test_a_pod_that_does_not_leave_is_killed_when_its_grace_is_over(fleet: Fleet, namespace: str) -> None:
    fleet.create(namespace, server("pod", linger=600))
    fleet.await_ready(namespace, "pod")
    began = time.monotonic()
    delete(fleet, namespace, "pod", gracePeriodSeconds=3)
    eventually(lambda: not fleet.exists(namespace, "pod"))
    assert time.monotonic() - began >= 3


def test_a_second_delete_shortens_the_grace(fleet: Fleet, namespace: str) -> None:
    fleet.create(namespace, server("pod", linger=600, terminationGracePeriodSeconds=600))
    fleet.await_ready(namespace, "pod")
    delete(fleet, namespace, "pod")
    eventually(lambda: "SIGTERM" in fleet.log(namespace, "pod", "c"))
    delete(fleet, namespace, "pod", gracePeriodSeconds=1)
    eventually(lambda: not fleet.exists(namespace, "pod"))


def test_an_eviction_waits_for_the_disruption_budget(fleet: Fleet, namespace: str) -> None:
    budget = {"metadata": {"name": "b"}, "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "pod"}}}}
    post(fleet, namespace, "poddisruptionbudgets", budget, "/apis/policy/v1")
    fleet.create(namespace, server("pod"))
    fleet.await_ready(namespace, "pod")
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "pod", "namespace": namespace}}
    path = f"/api/v1/namespaces/{namespace}/pods/pod/eviction"
    assert fleet.plane.api.post(path, json=eviction).status_code == 429
    fleet.plane.api.delete(f"/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets/b").raise_for_status()
    eventually(lambda: fleet.plane.api.post(path, json=eviction).status_code in {201, 404})
    eventually(lambda: not fleet.exists(namespace, "pod"))


def test_a_command_inside_the_container_can_be_its_hook(fleet: Fleet, namespace: str, tmp_path: Path) -> None:
    code = "import os, pathlib; pathlib.Path(os.environ['LEFT']).write_text(os.environ['POD_IP'])"
    hook = {"preStop": {"exec": {"command": ["python", "-c", code]}}}
    left = tmp_path / "left"
    env = [{"name": "LEFT", "value": str(left)}]
    fleet.create(namespace, server("pod", container={"lifecycle": hook, "env": env}))
    pod = fleet.await_ready(namespace, "pod")
    delete(fleet, namespace, "pod")
    eventually(lambda: not fleet.exists(namespace, "pod"))
    assert left.read_text() == pod["status"]["podIP"]


def test_an_unknown_image_waits_until_the_pod_is_deleted(fleet: Fleet, namespace: str) -> None:
    fleet.create(namespace, server("pod", container={"image": "no/such:1"}))

    def backs_off() -> bool:
        statuses = fleet.pod(namespace, "pod")["status"].get("containerStatuses", [{"state": {}}])
        return bool(statuses[0]["state"].get("waiting", {}).get("reason") == "ImagePullBackOff")

    eventually(backs_off)
    delete(fleet, namespace, "pod")
    eventually(lambda: not fleet.exists(namespace, "pod"))


def test_a_pod_that_is_failed_from_outside_is_stopped_and_stays_failed(fleet: Fleet, namespace: str) -> None:
    fleet.create(namespace, server("pod"))
    fleet.await_ready(namespace, "pod")
    sandbox = fleet.sandbox(namespace, "pod")
    merge = {"content-type": "application/merge-patch+json"}
    path = f"/api/v1/namespaces/{namespace}/pods/pod/status"
    status = {"status": {"phase": "Failed", "reason": "Evicted"}}
    fleet.plane.api.patch(path, json=status, headers=merge).raise_for_status()
    eventually(lambda: not sandbox.pids())
    eventually(lambda: not is_ready(fleet.pod(namespace, "pod")))
    assert fleet.pod(namespace, "pod")["status"]["phase"] == "Failed"
    delete(fleet, namespace, "pod")
    eventually(lambda: not fleet.exists(namespace, "pod"))


def test_a_forced_delete_leaves_no_process_behind(fleet: Fleet, namespace: str) -> None:
    fleet.create(namespace, server("pod", terminationGracePeriodSeconds=1))
    pod = fleet.await_ready(namespace, "pod")
    sandbox = fleet.sandbox(namespace, "pod")
    delete(fleet, namespace, "pod", gracePeriodSeconds=0)
    eventually(lambda: not sandbox.pids())
    try:
        ask(pod, "/healthz")
    except httpx.TransportError:
        return
    raise AssertionError("the server still answers")
