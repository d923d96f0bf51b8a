"""Broken devices, machines that are reclaimed, preemption: what says that a place will not last is acted on in time."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.controlplane.polling import eventually
from tests.fleet.fleet import Fleet
from tests.fleet.node import Node
from tests.operator.conftest import StartOperator
from tests.operator.deployments import MERGE, Deployments
from tests.operator.test_gangs import stages

_GPUS = 8


def bearing_all(gpus: int) -> dict[str, Any]:
    """A stage that bears every taint, and so is sent to cordoned nodes too."""
    template = stages(gpus)
    return {"spec": {**template["spec"], "tolerations": [{"operator": "Exists"}]}}


def only(deployments: Deployments) -> dict[str, Any]:
    """The one pod that stays, once there is one and no other."""

    def found() -> dict[str, Any] | None:
        pods = deployments.pods()
        return pods[0] if len(pods) == 1 and "deletionTimestamp" not in pods[0]["metadata"] else None

    pod = eventually(found)
    deployments.await_condition("Ready")
    return pod


def is_told(deployments: Deployments, words: str) -> bool:
    return any(words in group.get("message", "") for group in deployments.get()["status"]["groups"])


def lacks_room(deployments: Deployments) -> bool:
    return "there is no room for its successor" in deployments.condition("Scheduled").get("message", "")


def break_device(fleet: Fleet, namespace: str, name: str) -> None:
    """Report what a kubelet reports when a device plugin calls a device of the pod unhealthy.

    Again where that is gone: the simulated kubelet knows no devices, and a probe that was late makes it report anew.
    """
    url = f"/api/v1/namespaces/{namespace}/pods/{name}"
    answer = fleet.plane.api.get(url)
    if answer.status_code == 404:
        return
    containers = answer.raise_for_status().json()["status"]["containerStatuses"]
    if any("allocatedResourcesStatus" not in one for one in containers):
        device = {"name": "nvidia.com/gpu", "resources": [{"resourceID": "GPU-7", "health": "Unhealthy"}]}
        broken = [{**one, "allocatedResourcesStatus": [device]} for one in containers]
        fleet.plane.api.patch(f"{url}/status", json={"status": {"containerStatuses": broken}}, headers=MERGE)


@pytest.mark.timeout(240, func_only=True)
def test_a_group_leaves_what_will_not_last_and_waits_where_there_is_nothing_better(
    fleet: Fleet, deployments: Deployments, start_operator: StartOperator
) -> None:
    here, there, *others = fleet.nodes
    for node in (there, *others):
        node.set_gpus(0)
    operator = start_operator(cluster=True)
    deployments.create(replicas=1, stages=1, template=bearing_all(2))
    deployments.await_condition("Ready")
    assert only(deployments)["spec"]["nodeName"] == here.name

    here.say("XIDErrors", "True")
    eventually(lambda: is_told(deployments, f"is to leave {here.name} (condition XIDErrors is True)"))
    eventually(lambda: lacks_room(deployments))  # although the scheduler has nothing against that node
    there.set_gpus(_GPUS)
    eventually(lambda: here.name not in homes(deployments))
    here.say("XIDErrors", "False")

    name = str(only(deployments)["metadata"]["name"])
    here.set_gpus(0)  # so that it stays until it was told why it is to go

    def while_broken(holds: Callable[[], bool]) -> bool:
        break_device(fleet, deployments.namespace, name)
        return holds()

    why = "device GPU-7 of nvidia.com/gpu is unhealthy"
    eventually(lambda: while_broken(lambda: is_told(deployments, why)))
    here.set_gpus(_GPUS)
    eventually(lambda: while_broken(lambda: name not in names(deployments)))

    node = fleet.node(only(deployments)["spec"]["nodeName"])
    node.taint("cloud.google.com/impending-node-termination", "NoSchedule")
    eventually(lambda: node.name not in homes(deployments))
    node.untaint("cloud.google.com/impending-node-termination")

    home = fleet.node(only(deployments)["spec"]["nodeName"])
    everything_is_cordoned(fleet, deployments, home)
    before, visits = names(deployments), operator.metric("bireme_operator_reconciles_total", result="done") or 0
    eventually(lambda: (operator.metric("bireme_operator_reconciles_total", result="done") or 0) > visits + 5)
    assert names(deployments) == before, "it acts once, and waits"
    free = next(node for node in (here, there) if node is not home)
    free.uncordon()
    eventually(lambda: only(deployments)["spec"]["nodeName"] == free.name)


def everything_is_cordoned(fleet: Fleet, deployments: Deployments, home: Node) -> None:
    for node in sorted(fleet.nodes, key=lambda node: node is home):  # last the one that is a reason to go elsewhere
        node.cordon()
    eventually(lambda: len(names(deployments)) == 2 and lacks_room(deployments))


def homes(deployments: Deployments) -> set[str | None]:
    return {pod["spec"].get("nodeName") for pod in deployments.pods()}


def names(deployments: Deployments) -> set[str]:
    return {str(pod["metadata"]["name"]) for pod in deployments.pods()}


def test_a_stage_that_gives_way_to_a_pod_of_higher_priority_is_called_preempted(
    fleet: Fleet, deployments: Deployments, start_operator: StartOperator, tmp_path: Path
) -> None:
    for node in fleet.nodes[1:]:
        node.set_gpus(0)
    start_operator(cluster=True)
    template = stages(_GPUS)
    # The end takes until it was seen, as that of a stage does that has requests to finish.
    seen = tmp_path / "seen"
    wait = f"import os, time\nwhile not os.path.exists({str(seen)!r}): time.sleep(0.1)"
    template["spec"]["containers"][0]["lifecycle"] = {"preStop": {"exec": {"command": [sys.executable, "-c", wait]}}}
    deployments.create(replicas=1, stages=1, template=template, rollout={"drainTimeoutSeconds": 60})
    deployments.await_condition("Ready")
    important(fleet, deployments.namespace)
    noted = deployments.await_event("GroupLostPart", "Preempted")
    seen.touch()
    assert "had to give way" in noted[0]
    assert "PreemptionByScheduler" in noted[0]
    eventually(lambda: fleet.pod(deployments.namespace, "important")["spec"].get("nodeName"))
    back: Node = fleet.nodes[1]
    back.set_gpus(_GPUS)
    eventually(lambda: homes(deployments) == {back.name})
    assert deployments.await_ready()["restarts"] == 0, "to give way is no fault of the group"


def important(fleet: Fleet, namespace: str) -> None:
    """Make a pod that takes the devices of others."""
    kind = {"metadata": {"name": f"high-{namespace}"}, "value": 1000}
    fleet.plane.api.post("/apis/scheduling.k8s.io/v1/priorityclasses", json=kind).raise_for_status()
    container = {"name": "c", "image": "none", "resources": {"limits": {"nvidia.com/gpu": str(_GPUS)}}}
    spec = {"priorityClassName": f"high-{namespace}", "containers": [container], "terminationGracePeriodSeconds": 0}
    fleet.create(namespace, {"metadata": {"name": "important"}, "spec": spec})
