"""Nodes and pods for tests of scale: KWOK answers for them, nothing runs, a pod is ready as soon as it is bound.

It manages only the nodes that carry its annotation, so both kinds of node can stand in one cluster.
"""

import json
import secrets
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from bireme.process import child_environment
from tests.controlplane import tether
from tests.controlplane.cluster import ControlPlane
from tests.controlplane.polling import eventually
from tests.fleet.api import Object
from tests.fleet.kubelet import LEASES
from tests.fleet.node import RACK, ZONE, Shape

_ANNOTATION: Final = "kwok.x-k8s.io/node"
_PER_RACK: Final = 10
LOOPBACK: Final = "127.16.0.0/12"
"""Addresses at which a process of this machine can answer. No Service may lead to them."""
_LEASE_SECONDS: Final = 12
"""Renewed four times as often: a node whose Lease stands still takes the readiness of its pods along, for good here."""

_NODE_READY: Final = """
conditions:
- type: Ready
  status: "True"
  reason: KubeletReady
  message: simulated
  lastHeartbeatTime: {{ Now | Quote }}
  lastTransitionTime: {{ Now | Quote }}
"""

_POD_RUNNING: Final = """
{{ $now := Now }}
phase: Running
startTime: {{ $now | Quote }}
hostIP: 127.0.0.1
{{ with PodIPsWith .spec.nodeName false .metadata.uid .metadata.name .metadata.namespace }}
podIP: {{ index . 0 | Quote }}
podIPs:
- ip: {{ index . 0 | Quote }}
{{ end }}
conditions:
{{ range list "Initialized" "ContainersReady" "Ready" }}
- type: {{ . | Quote }}
  status: "True"
  lastTransitionTime: {{ $now | Quote }}
{{ end }}
containerStatuses:
{{ range .spec.containers }}
- name: {{ .name | Quote }}
  image: {{ .image | Quote }}
  imageID: simulated
  ready: true
  started: true
  restartCount: 0
  state:
    running:
      startedAt: {{ $now | Quote }}
{{ end }}
"""


def _stage(name: str, kind: str, conditions: list[Object], then: Object) -> Object:
    return {
        "apiVersion": "kwok.x-k8s.io/v1alpha1",
        "kind": "Stage",
        "metadata": {"name": name},
        "spec": {
            "resourceRef": {"apiGroup": "v1", "kind": kind},
            "selector": {"matchExpressions": conditions},
            "next": then,
        },
    }


def stages() -> list[Object]:
    """Return what KWOK does: nodes become ready, bound pods run, deleted pods are gone."""
    ready = '.status.conditions.[] | select( .type == "Ready" ) | .status'
    unready = {"key": ready, "operator": "NotIn", "values": ["True"]}
    stays = {"key": ".metadata.deletionTimestamp", "operator": "DoesNotExist"}
    goes = {"key": ".metadata.deletionTimestamp", "operator": "Exists"}
    # Of an end without grace, as its own, the server tells once more before the pod is gone.
    in_time = {"key": ".metadata.deletionGracePeriodSeconds | tostring", "operator": "NotIn", "values": ["0"]}
    pending = {"key": ".status.phase", "operator": "In", "values": ["Pending"]}
    return [
        _stage("node-ready", "Node", [unready], {"statusTemplate": _NODE_READY}),
        _stage("pod-running", "Pod", [stays, pending], {"statusTemplate": _POD_RUNNING}),
        _stage("pod-delete", "Pod", [goes, in_time], {"delete": True}),
    ]


def _configuration(workers: int) -> Object:
    options = dict.fromkeys(("podPlayStageParallelism", "nodePlayStageParallelism", "nodeLeaseParallelism"), workers)
    return {"apiVersion": "config.kwok.x-k8s.io/v1alpha1", "kind": "KwokConfiguration", "options": options}


class Kwok:
    """One KWOK process and the nodes that were made for it.

    ``workers``: pods it changes at once; 0: its own four. ``addresses``: where pods get theirs from.
    """

    def __init__(
        self,
        plane: ControlPlane,
        program: Path,
        directory: Path,
        *,
        lease_seconds: int = _LEASE_SECONDS,
        workers: int = 0,
        addresses: str = LOOPBACK,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._plane = plane
        self._prefix = f"kwok-{secrets.token_hex(3)}"
        self.names: list[str] = []
        config = directory / "stages.yaml"
        parts = [*stages(), *([_configuration(workers)] if workers else [])]
        config.write_text("\n---\n".join(map(json.dumps, parts)), encoding="utf-8")
        self.log = directory / "kwok.log"
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, tether.__file__, program, f"--kubeconfig={plane.kubeconfig}", f"--config={config}",
                 f"--manage-nodes-with-annotation-selector={_ANNOTATION}={self._prefix}", f"--cidr={addresses}",
                 f"--node-lease-duration-seconds={lease_seconds}", "--node-ip=127.0.0.1"],
                env=child_environment({**(environment or {})}), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def add_nodes(self, count: int, labels: Mapping[str, str] | None = None, gpus: int = 8) -> list[str]:
        """Make ``count`` nodes, ten in a rack, and return their names once all are ready."""
        made = [self._add(len(self.names), dict(labels or {}), gpus) for _ in range(count)]
        eventually(lambda: self._ready() >= set(made))
        return made

    def _add(self, index: int, labels: Mapping[str, str], gpus: int) -> str:
        name = f"{self._prefix}-{index}"
        place = {ZONE: "zone-0", RACK: f"{self._prefix}-rack-{index // _PER_RACK}"}
        body = Shape({**place, "type": "kwok", **labels}, gpus).manifest(name)
        body["metadata"]["annotations"] = {_ANNOTATION: self._prefix}
        body["status"]["conditions"] = []
        self._plane.api.post("/api/v1/nodes", json=body).raise_for_status()
        self.names.append(name)
        return name

    def _ready(self) -> set[str]:
        assert self._process.poll() is None, f"kwok ended: {self.log.read_text()[-2000:]}"
        listed = self._plane.api.get("/api/v1/nodes", params={"labelSelector": "type=kwok"}).raise_for_status().json()
        return {
            node["metadata"]["name"]
            for node in listed["items"]
            if any(c["type"] == "Ready" and c["status"] == "True" for c in node["status"].get("conditions", []))
        }

    def close(self) -> None:
        """Take pods and nodes away and end KWOK."""
        pods = self._plane.api.get("/api/v1/pods").raise_for_status().json()["items"]
        for pod in pods:
            if pod["spec"].get("nodeName") in self.names:
                path = f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"
                self._plane.api.delete(path, params={"gracePeriodSeconds": "0"})
        self._process.kill()
        self._process.wait()
        for name in self.names:
            self._plane.api.delete(f"/api/v1/nodes/{name}")
            self._plane.api.delete(f"{LEASES}/{name}")
