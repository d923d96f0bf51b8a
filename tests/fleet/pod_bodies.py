"""Pods for the fleet's own tests: one small server each, and short ways to make, ask and delete."""

from pathlib import Path
from typing import Any

import httpx

from tests.fleet.api import Object
from tests.fleet.fixtures import PYTHON_IMAGE
from tests.fleet.fleet import Fleet

PORT = 8000
_SERVER = str(Path(__file__).with_name("server.py"))
TOLERATIONS = [
    {"key": key, "operator": "Exists", "effect": "NoExecute"}
    for key in ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
]


def server(name: str, *, linger: int = 0, container: Object | None = None, **spec: Any) -> Object:
    """A pod with the test server in it, ready when `/healthz` is well."""
    inside: Object = {
        "name": "c",
        "image": PYTHON_IMAGE,
        "args": [_SERVER, str(PORT), str(linger)],
        "env": [],
        "ports": [{"name": "http", "containerPort": PORT}],
        "readinessProbe": {"httpGet": {"path": "/healthz", "port": "http"}, "periodSeconds": 1, "failureThreshold": 1},
        **(container or {}),
    }
    inside["env"] = [{"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}, *inside["env"]]
    body = {"automountServiceAccountToken": False, "terminationGracePeriodSeconds": 30, "containers": [inside], **spec}
    return {"metadata": {"name": name, "labels": {"app": name}}, "spec": body}


def ask(pod: Object, path: str) -> str:
    """Return what the pod's server says."""
    url = f"http://{pod['status']['podIP']}:{PORT}{path}"
    return httpx.get(url, trust_env=False, timeout=10).raise_for_status().text


def crash(pod: Object, code: int) -> None:
    """Let the pod's server exit."""
    url = f"http://{pod['status']['podIP']}:{PORT}/crash/{code}"
    try:
        httpx.get(url, trust_env=False, timeout=10)
    except httpx.TransportError:
        return
    raise AssertionError("the server went on after /crash")


def container_status(fleet: Fleet, namespace: str, name: str) -> Object:
    found: Object = fleet.pod(namespace, name)["status"]["containerStatuses"][0]
    return found


def post(fleet: Fleet, namespace: str, kind: str, body: Object, api: str = "/api/v1") -> None:
    fleet.plane.api.post(f"{api}/namespaces/{namespace}/{kind}", json=body).raise_for_status()


def delete(fleet: Fleet, namespace: str, name: str, **options: Any) -> None:
    path = f"/api/v1/namespaces/{namespace}/pods/{name}"
    fleet.plane.api.request("DELETE", path, json=options).raise_for_status()
