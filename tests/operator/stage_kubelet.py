"""A kubelet for stage pods whose serving is not the point: each bound pod is a process that speaks as a stage does.

It binds pods itself, so the scheduler is not needed, and reports what a kubelet reports: address, container states,
readiness, the end of a deleted pod. Real workers run on the nodes of tests/fleet.
"""

import base64
import subprocess
import sys
import threading
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

import httpx

from bireme.process import child_environment
from bireme_operator.local.addresses import draw_address
from tests.controlplane.cluster import ControlPlane

_STAGE = Path(__file__).parents[1] / "local" / "scripted_stage.py"
_LOOK_SECONDS = 0.05
_LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
_MERGE = {"content-type": "application/merge-patch+json"}


class StageKubelet:
    """Works from `__enter__` to `__exit__`. ``hold`` keeps pods from being started."""

    def __init__(self, plane: ControlPlane, namespace: str, directory: Path) -> None:
        self._plane = plane
        self._pods_url = f"/api/v1/namespaces/{namespace}/pods"
        self._secrets_url = f"/api/v1/namespaces/{namespace}/secrets"
        self._node = f"node-{namespace}"
        self._directory = directory
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._addresses: dict[str, str] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.hold = threading.Event()
        self.started: list[str] = []
        """Name of every pod that was started, in order."""

    def __enter__(self) -> Self:
        # Unschedulable: this kubelet binds its pods itself.
        node = {"metadata": {"name": self._node}, "spec": {"unschedulable": True}}
        self._plane.api.post("/api/v1/nodes", json=node).raise_for_status()
        # A leader that a busy machine keeps silent for a moment must not cost the node: its Lease may stand still long.
        lease = {"metadata": {"name": self._node}, "spec": {"holderIdentity": self._node, "leaseDurationSeconds": 3600}}
        self._plane.api.post(_LEASES, json=lease).raise_for_status()
        self._api = self._plane.client(self._plane.users.admin)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        for process in self._processes.values():
            process.kill()
            process.wait()
        self._api.close()
        self._plane.api.delete(f"{_LEASES}/{self._node}").raise_for_status()
        self._plane.api.delete(f"/api/v1/nodes/{self._node}").raise_for_status()

    def state_dir(self, pod: dict[str, Any]) -> Path:
        """Where the process of the pod takes its orders: `requests`, `state`, `version`."""
        return self._directory / str(pod["metadata"]["uid"])

    def load(self, pod: dict[str, Any], requests: int) -> None:
        """Let the process of the pod say that so many requests run."""
        self._order(pod, "requests", requests)

    def speak(self, pod: dict[str, Any], version: int) -> None:
        """Let the process of the pod speak another wire version."""
        self._order(pod, "version", version)

    def _order(self, pod: dict[str, Any], word: str, number: int) -> None:
        """Give an order; half of the number is never read."""
        directory = self.state_dir(pod)
        partial = directory / f".{word}.partial"
        partial.write_text(str(number))
        partial.rename(directory / word)

    def crash(self, pod: dict[str, Any], code: int, message: str, restarts: int, *, waiting: bool) -> None:
        """Report that the pod's container has ended, as a kubelet would under `restartPolicy: OnFailure`."""
        end = {"exitCode": code, "message": message, "reason": "Error"}
        state: dict[str, Any] = {"waiting": {"reason": "CrashLoopBackOff"}} if waiting else {"terminated": end}
        self._report(pod, state, restarts, ready=False, last={"terminated": end})

    def _run(self) -> None:
        while not self._stop.wait(_LOOK_SECONDS):
            with suppress(httpx.TransportError):  # a restarted API server: the next look finds it
                self._look()

    def _look(self) -> None:
        answer = self._api.get(self._pods_url, params={"labelSelector": "bireme.dev/stage"})
        if answer.status_code == 200:
            for pod in answer.json()["items"]:
                self._look_after(pod)

    def _look_after(self, pod: dict[str, Any]) -> None:
        uid, name = pod["metadata"]["uid"], pod["metadata"]["name"]
        if "deletionTimestamp" in pod["metadata"]:
            self._end(uid, name)
        elif uid not in self._processes and not self.hold.is_set():
            if "nodeName" not in pod["spec"]:
                target = {"apiVersion": "v1", "kind": "Node", "name": self._node}
                self._api.post(f"{self._pods_url}/{name}/binding", json={"metadata": {"name": name}, "target": target})
            self._start(pod)

    def _start(self, pod: dict[str, Any]) -> None:
        uid = pod["metadata"]["uid"]
        directory = self.state_dir(pod)
        directory.mkdir(parents=True, exist_ok=True)
        address = self._addresses.setdefault(uid, draw_address())
        environment = {entry["name"]: entry.get("value", address) for entry in pod["spec"]["containers"][0]["env"]}
        environment |= {"BIREME_STATE_DIR": str(directory), "BIREME_TOKEN_FILE": str(directory / "token")}
        environment |= {"SCRIPT": "stage"}
        (directory / "token").write_text(self._token(pod))
        with (directory / "log").open("ab") as log:
            self._processes[uid] = subprocess.Popen(
                [sys.executable, str(_STAGE)], env=child_environment(environment), stdout=log, stderr=log
            )
        self.started.append(pod["metadata"]["name"])
        self._report(pod, {"running": {"startedAt": _now()}}, 0, ready=True)

    def _token(self, pod: dict[str, Any]) -> str:
        volume = next(v["secret"] for v in pod["spec"]["volumes"] if v["name"] == "token")
        secret = self._api.get(f"{self._secrets_url}/{volume['secretName']}").raise_for_status().json()
        return base64.b64decode(secret["data"][volume["items"][0]["key"]]).decode()

    def _report(
        self,
        pod: dict[str, Any],
        state: dict[str, Any],
        restarts: int,
        *,
        ready: bool,
        last: dict[str, Any] | None = None,
    ) -> None:
        address = self._addresses[pod["metadata"]["uid"]]
        container = {"name": "worker", "image": "i", "imageID": "", "ready": ready, "restartCount": restarts}
        status = {
            "phase": "Running",
            "podIP": address,
            "podIPs": [{"ip": address}],
            "containerStatuses": [container | {"state": state, "lastState": last or {}}],
            "conditions": [{"type": "Ready", "status": str(ready)}, {"type": "PodScheduled", "status": "True"}],
        }
        name = pod["metadata"]["name"]
        self._api.patch(f"{self._pods_url}/{name}/status", json={"status": status}, headers=_MERGE)

    def _end(self, uid: str, name: str) -> None:
        process = self._processes.get(uid)
        if process is not None:
            process.terminate()
            process.wait(timeout=60)
        self._api.request(
            "DELETE", f"{self._pods_url}/{name}", json={"gracePeriodSeconds": 0, "preconditions": {"uid": uid}}
        )


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
