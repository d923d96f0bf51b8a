"""A node's kubelet: renews its Lease, keeps its Ready condition true, and runs a worker for each pod bound to it.

Stopping it touches no pod. It speaks as the administrator, so nothing of the node authorizer is tested here.
"""

import asyncio
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from tests.fleet.api import STRATEGIC, ApiRefused, NodeApi, Object, Unreachable
from tests.fleet.pods import PodWorker
from tests.fleet.runtime import Runtime
from tests.fleet.status import timestamp

LEASES: Final = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
_PODS: Final = "/api/v1/pods"
_RETRY_S: Final = 0.3


@dataclass
class Health:
    """What the kubelet says of its node."""

    ready: bool = True
    message: str = "the simulated kubelet is posting ready status"

    def condition(self) -> Object:
        return {
            "type": "Ready",
            "status": "True" if self.ready else "False",
            "reason": "KubeletReady" if self.ready else "KubeletNotReady",
            "message": self.message,
            "lastHeartbeatTime": timestamp(time.time()),
            "lastTransitionTime": timestamp(time.time()),
        }


@dataclass
class Kubelet:
    """One start of the kubelet; `run` lasts until it is cancelled."""

    api: NodeApi
    runtime: Runtime
    health: Health
    base: dict[str, str]
    errors: list[BaseException]
    """Faults of the simulation itself, for the fleet to report."""
    _workers: dict[str, PodWorker] = field(default_factory=dict)
    _tasks: dict[str, asyncio.Task] = field(default_factory=dict)
    _buried: set[str] = field(default_factory=set)

    async def run(self) -> None:
        """Do a kubelet's work."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._keep_alive())
                group.create_task(self._follow_pods())
        finally:
            for task in self._tasks.values():
                task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def _keep_alive(self) -> None:
        while True:
            try:
                await self.beat()
            except (Unreachable, ApiRefused):
                await asyncio.sleep(_RETRY_S)
            else:
                await asyncio.sleep(self.runtime.settings.lease_seconds / 4)

    async def beat(self) -> None:
        """Renew the Lease, and correct the Ready condition where somebody has changed it."""
        name = self.runtime.node
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec = {
            "holderIdentity": name,
            "leaseDurationSeconds": self.runtime.settings.lease_seconds,
            "renewTime": now,
        }
        try:
            await self.api.patch(f"{LEASES}/{name}", {"spec": spec})
        except ApiRefused as refusal:
            if refusal.status != 404:
                raise
            await self.api.post(LEASES, {"metadata": {"name": name}, "spec": spec})
        await self._correct_condition()

    async def _correct_condition(self) -> None:
        path = f"/api/v1/nodes/{self.runtime.node}"
        conditions = (await self.api.get(path))["status"].get("conditions", [])
        wanted = self.health.condition()
        if wanted["status"] not in [each["status"] for each in conditions if each["type"] == "Ready"]:
            await self.api.patch(f"{path}/status", {"status": {"conditions": [wanted]}}, STRATEGIC)

    async def _follow_pods(self) -> None:
        mine = {"fieldSelector": f"spec.nodeName={self.runtime.node}"}
        while True:
            try:
                listed = await self.api.get(f"{_PODS}?fieldSelector={mine['fieldSelector']}")
                self._take_all(listed["items"])
                version = listed["metadata"]["resourceVersion"]
                async for kind, pod in self.api.watch(_PODS, {**mine, "resourceVersion": version}):
                    self._take(kind, pod)
            except (Unreachable, ApiRefused):
                await asyncio.sleep(_RETRY_S)

    def _take_all(self, pods: list[Object]) -> None:
        wanted = {pod["metadata"]["uid"] for pod in pods}
        for uid in set(self._workers) - wanted:
            self._workers[uid].vanish()
        for uid in set(self.runtime.sandboxes) - wanted - set(self._workers):
            self.runtime.remove(uid)  # deleted while no kubelet was here
        for pod in pods:
            self._take("ADDED", pod)

    def _take(self, kind: str, pod: Object) -> None:
        uid = pod["metadata"]["uid"]
        worker = self._workers.get(uid)
        if kind == "DELETED":
            if worker is not None:
                worker.vanish()
        elif worker is not None:
            worker.update(pod)
        elif uid not in self._buried:  # a late word of a pod that is gone starts nothing
            self._begin(uid, pod)

    def _begin(self, uid: str, pod: Object) -> None:
        self._workers[uid] = PodWorker(pod, self.api, self.runtime, self.base)
        self._tasks[uid] = asyncio.create_task(self._workers[uid].run())
        self._tasks[uid].add_done_callback(lambda task: self._forget(uid, task))

    def _forget(self, uid: str, task: asyncio.Task) -> None:
        self._workers.pop(uid)
        self._tasks.pop(uid)
        self._buried.add(uid)
        if not task.cancelled() and (error := task.exception()):
            self.errors.append(error)
