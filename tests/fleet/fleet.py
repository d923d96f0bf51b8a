"""Simulated nodes on a real control plane, whose pods are real processes of this machine.

One thread runs the kubelets of all nodes; it also starts every process, so nothing outlives the fleet, however the test
session ends. Pods listen on their own loopback address (`status.podIP`); a program that binds every address would meet
the next pod's.
"""

import asyncio
import secrets
from collections.abc import Coroutine, Mapping
from threading import Thread
from typing import Any

from tests.controlplane.cluster import ControlPlane
from tests.controlplane.polling import eventually
from tests.fleet.api import Object
from tests.fleet.names import is_ready
from tests.fleet.node import CLIQUE, RACK, ZONE, Node, Shape
from tests.fleet.runtime import Runtime, Sandbox
from tests.fleet.settings import Addresses, Settings

_PATIENCE_S = 120.0


class Fleet:
    """The nodes of one test."""

    def __init__(self, plane: ControlPlane, settings: Settings) -> None:
        self.plane = plane
        self.settings = settings
        self.nodes: list[Node] = []
        self.errors: list[BaseException] = []
        self._addresses = Addresses()
        self._suffix = secrets.token_hex(3)
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name="fleet", daemon=True)
        self._thread.start()

    def add_node(self, shape: Shape) -> Node:
        """Register a node and start its kubelet."""
        name = f"node-{len(self.nodes)}-{self._suffix}"
        runtime = Runtime(name, self.settings, self._addresses)
        node = Node(name, self.plane, runtime, self._run, self.errors)
        self.nodes.append(node)
        node.register(shape)
        return node

    def add_racks(self, racks: int = 2, nodes: int = 2, gpus: int = 8, labels: Mapping[str, str] | None = None) -> None:
        """Add ``racks`` × ``nodes`` nodes; each rack is one NVLink clique, all are in one zone."""
        for rack in range(racks):
            own = {ZONE: "zone-0", RACK: f"rack-{rack}", CLIQUE: f"clique-{rack}", **(labels or {})}
            for _ in range(nodes):
                self.add_node(Shape(own, gpus))

    def await_open(self) -> None:
        """Wait until the scheduler may use every node: each is tainted for a moment after it has registered."""
        eventually(lambda: not any(node.taints() for node in self.nodes))

    def node(self, name: str) -> Node:
        """Return the node of that name."""
        return next(node for node in self.nodes if node.name == name)

    def node_of(self, namespace: str, pod: str) -> Node:
        """Return the node that a pod is bound to."""
        return self.node(self.pod(namespace, pod)["spec"]["nodeName"])

    def pod(self, namespace: str, name: str) -> Object:
        """Return the Pod object."""
        found: Object = self.plane.api.get(_pods(namespace, name)).raise_for_status().json()
        return found

    def exists(self, namespace: str, name: str) -> bool:
        """Whether there is such a pod, terminating or not."""
        return self.plane.api.get(_pods(namespace, name)).status_code == 200

    def create(self, namespace: str, pod: Object) -> str:
        """Make a pod and return its name."""
        made = self.plane.api.post(_pods(namespace), json=pod).raise_for_status().json()
        return str(made["metadata"]["name"])

    def await_ready(self, namespace: str, name: str, within: float = _PATIENCE_S) -> Object:
        """Return the pod once its Ready condition is true."""

        def ready() -> Object | None:
            pod = self.pod(namespace, name)
            return pod if is_ready(pod) else None

        return eventually(ready, within=within)

    def sandbox(self, namespace: str, name: str) -> Sandbox:
        """Return what runs of a pod: `.ip`, `.pids()`, `.log(container)`, `.containers[name].process.pid`."""
        found = [each for node in self.nodes for each in node.sandboxes]
        return next(each for each in reversed(found) if (each.namespace, each.name) == (namespace, name))

    def log(self, namespace: str, name: str, container: str) -> str:
        """Return everything that a container has written."""
        return self.sandbox(namespace, name).log(container).read_text(encoding="utf-8", errors="replace")

    def close(self) -> None:
        """End every process and take the nodes away; raises what went wrong inside the simulation itself."""
        for node in self.nodes:
            node.close()
        self._force_away()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        if self.errors:
            raise ExceptionGroup("the simulated kubelets failed", [e for e in self.errors if isinstance(e, Exception)])

    def _force_away(self) -> None:
        """Delete what was bound here: no kubelet is left to do it, and the garbage collector takes its time."""
        names = {node.name for node in self.nodes}
        for pod in self.plane.api.get("/api/v1/pods").raise_for_status().json()["items"]:
            if pod["spec"].get("nodeName") in names:
                path = _pods(pod["metadata"]["namespace"], pod["metadata"]["name"])
                self.plane.api.delete(path, params={"gracePeriodSeconds": "0"})

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout=_PATIENCE_S)


def _pods(namespace: str, name: str = "") -> str:
    return f"/api/v1/namespaces/{namespace}/pods" + (f"/{name}" if name else "")
