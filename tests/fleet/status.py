"""A pod's status as a kubelet reports it: phase, conditions and container statuses, from what runs on the node."""

import time
from datetime import UTC, datetime

from tests.fleet.api import Object
from tests.fleet.runtime import Container, Ended, Sandbox

TERMINAL = ("Succeeded", "Failed")
_OWN = ("PodReadyToStartContainers", "Initialized", "ContainersReady", "Ready")


def timestamp(seconds: float) -> str:
    """Return a time as Kubernetes writes it."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def status(pod: Object, sandbox: Sandbox, *, mounted: bool, stopped: bool) -> Object:
    """Return the status to send. ``stopped``: nothing of the pod will run again."""
    return {
        "phase": phase(pod, sandbox, stopped=stopped),
        "hostIP": "127.0.0.1",
        "podIP": sandbox.ip,
        "podIPs": [{"ip": sandbox.ip}],
        "startTime": timestamp(sandbox.started_at),
        "conditions": _conditions(pod, sandbox, mounted),
        "containerStatuses": [_container(each) for each in sandbox.containers.values()],
        "initContainerStatuses": [_container(each) for each in sandbox.init.values()],
    }


def phase(pod: Object, sandbox: Sandbox, *, stopped: bool) -> str:
    """Return Pending, Running, Succeeded or Failed; a pod that somebody has failed stays failed."""
    said = str(pod["status"].get("phase"))
    if said in TERMINAL:
        return said
    ends = [each.ended for each in sandbox.containers.values()]
    failed_init = [each for each in sandbox.init.values() if each.ended and each.ended.code and not each.runs]
    if failed_init and pod["spec"].get("restartPolicy") == "Never":
        return "Failed"
    policy = pod["spec"].get("restartPolicy", "Always")
    finished = all(ended and not each.runs for ended, each in zip(ends, sandbox.containers.values(), strict=True))
    codes = [ended.code for ended in ends if ended]
    if stopped or (finished and (policy == "Never" or (policy == "OnFailure" and not any(codes)))):
        return "Succeeded" if codes and not any(codes) else "Failed"
    return "Running" if any(each.starts for each in sandbox.containers.values()) else "Pending"


def initialized(sandbox: Sandbox) -> bool:
    """Whether every init container has ended well."""
    return all(each.ended and each.ended.code == 0 for each in sandbox.init.values())


def _conditions(pod: Object, sandbox: Sandbox, mounted: bool) -> list[Object]:
    containers = all(each.ready for each in sandbox.containers.values())
    gates = {gate["conditionType"] for gate in pod["spec"].get("readinessGates", [])}
    met = {each["type"] for each in pod["status"].get("conditions", []) if each["status"] == "True"}
    facts = (mounted, initialized(sandbox), containers, containers and gates <= met)
    return [_condition(sandbox, kind, fact) for kind, fact in zip(_OWN, facts, strict=True)]


def _condition(sandbox: Sandbox, kind: str, holds: bool) -> Object:
    value = "True" if holds else "False"
    before, since = sandbox.conditions.get(kind, ("", 0.0))
    if before != value:
        since = time.time()
        sandbox.conditions[kind] = (value, since)
    return {"type": kind, "status": value, "lastTransitionTime": timestamp(since)}


def _container(container: Container) -> Object:
    image = container.spec["image"]
    return {
        "name": container.name,
        "image": image,
        "imageID": f"fleet/{image}" if container.starts else "",
        "ready": container.ready,
        "started": container.started,
        "restartCount": max(container.starts - 1, 0),
        "state": _state(container),
        "lastState": {"terminated": _terminated(container.ended)} if container.ended and _goes_on(container) else {},
    }


def _goes_on(container: Container) -> bool:
    return container.runs or bool(container.waiting)


def _state(container: Container) -> Object:
    if container.runs:
        return {"running": {"startedAt": timestamp(container.started_at)}}
    if container.ended and not container.waiting:
        return {"terminated": _terminated(container.ended)}
    return {"waiting": {"reason": container.waiting, "message": container.message}}


def _terminated(ended: Ended) -> Object:
    return {
        "exitCode": ended.code,
        "reason": "Error" if ended.code else "Completed",
        "message": ended.message,
        "startedAt": timestamp(ended.started_at),
        "finishedAt": timestamp(ended.finished_at),
    }


def agrees(pod: Object, wanted: Object) -> bool:
    """Whether the API server's object says what this node says, in what others also write: phase and conditions."""
    said = {each["type"]: each["status"] for each in pod["status"].get("conditions", [])}
    same = all(said.get(each["type"]) == each["status"] for each in wanted["conditions"])
    return same and pod["status"].get("phase") == wanted["phase"]
