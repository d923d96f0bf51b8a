"""A simulated node as a test holds it: its objects in the API, its processes, and every way in which nodes fail.

All methods may be called from the test's thread and return when the thing is done on the node; what the control plane
makes of it (taints, evictions) comes in its own time.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from tests.controlplane.cluster import ControlPlane
from tests.controlplane.polling import eventually
from tests.fleet.api import MERGE, STRATEGIC, NodeApi, Object
from tests.fleet.kubelet import LEASES, Health, Kubelet
from tests.fleet.runtime import Runtime, Sandbox

GPU: Final = "nvidia.com/gpu"
RACK: Final = "topology.kubernetes.io/rack"
ZONE: Final = "topology.kubernetes.io/zone"
CLIQUE: Final = "nvidia.com/gpu.clique"


@dataclass(frozen=True)
class Shape:
    """What a node says it has."""

    labels: Mapping[str, str]
    gpus: int = 8
    cpu: str = "32"
    memory: str = "256Gi"
    pods: int = 110
    taints: Sequence[Object] = ()

    def manifest(self, name: str) -> Object:
        """Return the Node object, ready from the start as the kubelet that registers it is."""
        size = {"cpu": self.cpu, "memory": self.memory, "pods": str(self.pods), "ephemeral-storage": "100Gi"}
        size |= {GPU: str(self.gpus)} if self.gpus else {}
        return {
            "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, **self.labels}},
            "spec": {"taints": list(self.taints)},
            "status": {
                "capacity": size,
                "allocatable": size,
                "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
                "conditions": [Health().condition()],
            },
        }


class Loop(Protocol):
    """Runs a coroutine on the fleet's thread and returns its result."""

    def __call__(self, work: Coroutine[Any, Any, Any]) -> Any: ...


class Node:
    """One node. After `kill` only `boot` helps; after `freeze` only `thaw`; the other faults are independent."""

    def __init__(
        self, name: str, plane: ControlPlane, runtime: Runtime, loop: Loop, errors: list[BaseException]
    ) -> None:
        self.name = name
        self._plane = plane
        self._runtime = runtime
        self._on_loop = loop
        self._health = Health()
        self._api = NodeApi(plane)
        self._errors = errors
        self._kubelet: asyncio.Task | None = None

    @property
    def path(self) -> str:
        """Where the Node object is."""
        return f"/api/v1/nodes/{self.name}"

    @property
    def sandboxes(self) -> list[Sandbox]:
        """The pods on this node, with their addresses, logs and processes."""
        return list(self._runtime.sandboxes.values())

    def object(self) -> Object:
        """Return the Node object."""
        found: Object = self._plane.api.get(self.path).raise_for_status().json()
        return found

    def taints(self) -> set[tuple[str, str]]:
        """Return (key, effect) of each taint."""
        return {(taint["key"], taint["effect"]) for taint in self.object()["spec"].get("taints", [])}

    def register(self, shape: Shape) -> None:
        """Make the Node object and start the kubelet."""
        self._plane.api.post("/api/v1/nodes", json=shape.manifest(self.name)).raise_for_status()
        self.start_kubelet()

    def start_kubelet(self) -> None:
        """Start the kubelet; it finds its containers again, and has beaten once when this returns."""
        self._on_loop(self._start())

    def stop_kubelet(self) -> None:
        """End the kubelet alone: the Lease stands still, the containers go on."""
        self._on_loop(self._stop())

    def restart_kubelet(self) -> None:
        """Stop and start the kubelet; no container notices."""
        self.stop_kubelet()
        self.start_kubelet()

    def kill(self) -> None:
        """Cut the power: every process of the node is gone, nobody tells the API server."""
        self._on_loop(self._lose())
        eventually(self._runtime.is_dead)

    def boot(self) -> None:
        """Let a killed node return: pods that are still wanted start anew at other addresses, the others are removed."""
        self.start_kubelet()

    def freeze(self) -> None:
        """Stop every process of the node where it is (SIGSTOP), the kubelet too; connections stay open, nobody answers."""
        self.stop_kubelet()
        self._runtime.stop()
        eventually(self._runtime.stands_still)

    def thaw(self) -> None:
        """Let a frozen node go on."""
        self._runtime.resume()
        self.start_kubelet()

    def partition_from_api(self) -> None:
        """Cut the node's connection to the API server; its pods still reach one another."""
        self._on_loop(self._api.cut())

    def heal(self) -> None:
        """Mend the connection to the API server."""
        self._on_loop(self._api.mend())

    def make_not_ready(self, message: str = "container runtime is down") -> None:
        """Let the kubelet, alive, report that its node is not ready."""
        self._say(Health(ready=False, message=message))

    def make_ready(self) -> None:
        """Let the kubelet report a healthy node again."""
        self._say(Health())

    def cordon(self) -> None:
        """Mark the node unschedulable, as `kubectl cordon` does."""
        self._change({"spec": {"unschedulable": True}})

    def uncordon(self) -> None:
        """Take the cordon back."""
        self._change({"spec": {"unschedulable": None}})

    def taint(self, key: str, effect: str, value: str = "") -> None:
        """Add a taint."""
        self._change_taints(lambda taints: [*taints, {"key": key, "value": value, "effect": effect}])

    def untaint(self, key: str) -> None:
        """Remove every taint of that key."""
        self._change_taints(lambda taints: [taint for taint in taints if taint["key"] != key])

    def say(self, kind: str, status: str) -> None:
        """Let a node problem detector report a condition of this type."""
        condition = {"type": kind, "status": status, "reason": "Test", "message": "as the test has it"}
        headers = {"content-type": STRATEGIC}
        said = self._plane.api.patch(
            f"{self.path}/status", json={"status": {"conditions": [condition]}}, headers=headers
        )
        said.raise_for_status()

    def set_gpus(self, count: int) -> None:
        """Change how many devices are healthy; the kubelet's allocatable says so."""
        self._change({"status": {"allocatable": {GPU: str(count)}}}, "/status")

    def delete_object(self) -> None:
        """Delete Node and Lease, as a cloud does for a machine that is gone for good."""
        self._plane.api.delete(self.path)
        self._plane.api.delete(f"{LEASES}/{self.name}")

    def close(self) -> None:
        """End everything of the node, and take its objects away."""
        self.kill()
        self._on_loop(self._api.close())
        self.delete_object()

    def _change(self, body: Object, suffix: str = "") -> None:
        answer = self._plane.api.patch(f"{self.path}{suffix}", json=body, headers={"content-type": MERGE})
        answer.raise_for_status()

    def _change_taints(self, change: Callable[[list[Object]], list[Object]]) -> None:
        """Write the list anew, unless the node controller has written it meanwhile: then begin again."""

        def written() -> bool:
            node = self.object()
            taints = change(node["spec"].get("taints", []))
            body = {"metadata": {"resourceVersion": node["metadata"]["resourceVersion"]}, "spec": {"taints": taints}}
            answer = self._plane.api.patch(self.path, json=body, headers={"content-type": MERGE})
            return answer.status_code != 409 and bool(answer.raise_for_status())

        eventually(written)

    def _say(self, health: Health) -> None:
        self._health.ready, self._health.message = health.ready, health.message
        self._on_loop(self._agent().beat())

    def _agent(self) -> Kubelet:
        host, port = self._plane.url.removeprefix("https://").split(":")
        base = {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port}
        return Kubelet(self._api, self._runtime, self._health, base, self._errors)

    async def _start(self) -> None:
        assert self._kubelet is None, f"the kubelet of {self.name} runs already"
        self._kubelet = asyncio.create_task(self._agent().run())

    async def _stop(self) -> None:
        if self._kubelet is not None:
            self._kubelet.cancel()
            await asyncio.wait({self._kubelet})
            self._note(self._kubelet)
            self._kubelet = None
        await self._api.close()

    def _note(self, task: asyncio.Task) -> None:
        if not task.cancelled() and (error := task.exception()):
            self._errors.append(error)

    async def _lose(self) -> None:
        await self._stop()
        await self._runtime.lose()
