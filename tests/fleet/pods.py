"""One pod on its node, from binding to its last DELETE: volumes, containers, status, and the end that was asked for."""

import asyncio
import contextlib
import time

from tests.fleet.api import STRATEGIC, ApiRefused, NodeApi, Object, Unreachable
from tests.fleet.containers import Place, keep, stop
from tests.fleet.runtime import Container, Runtime
from tests.fleet.sources import Unsatisfied
from tests.fleet.status import TERMINAL, agrees, initialized, status
from tests.fleet.volumes import mount, refresh

_RETRY_S = 0.3


class PodWorker:
    """Keeps one pod as the API server wants it. Cancelling `run` leaves its processes alone."""

    def __init__(self, pod: Object, api: NodeApi, runtime: Runtime, base: dict[str, str]) -> None:
        self._dirty = asyncio.Event()
        self._api = api
        self._runtime = runtime
        self._place = Place(
            pod, runtime.sandbox(pod), api, runtime.settings, runtime.node, self._base(pod, base), self._dirty.set
        )
        self._path = f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"
        self._marked = asyncio.Event()
        self._ending = asyncio.Event()
        self._unwanted = asyncio.Event()
        self._gone = False
        self._mounted = False
        self._stopped = False
        self._sent: Object = {}
        self.update(pod)

    @staticmethod
    def _base(pod: Object, base: dict[str, str]) -> dict[str, str]:
        return {**base, "HOSTNAME": pod["spec"].get("hostname") or pod["metadata"]["name"]}

    def update(self, pod: Object) -> None:
        """Take the newest state of the object."""
        if _marks(pod) != _marks(self._place.pod):
            self._marked.set()
        self._place.pod = pod
        if "deletionTimestamp" in pod["metadata"]:
            deadline = time.monotonic() + pod["metadata"]["deletionGracePeriodSeconds"]
            self._place.deadline = min(deadline, self._place.deadline or deadline)
            self._unwanted.set()
            self._ending.set()
        elif pod["status"].get("phase") in TERMINAL:  # evicted, or finished: nothing of it may run
            self._place.deadline = self._place.deadline or time.monotonic() + self._grace
            self._ending.set()
        self._dirty.set()

    def vanish(self) -> None:
        """Take that the object is gone: somebody deleted it by force."""
        self._gone = True
        self._place.deadline = self._place.deadline or time.monotonic() + self._grace
        self._ending.set()
        self._unwanted.set()

    @property
    def _grace(self) -> float:
        return float(self._place.pod["spec"].get("terminationGracePeriodSeconds", 30))

    async def run(self) -> None:
        """Run the pod until it is deleted and gone."""
        ending = asyncio.create_task(self._ending.wait())
        work = (self._serve(), self._report(), self._keep_volumes_fresh())
        serving, reporting, refreshing = map(asyncio.create_task, work)
        try:
            await _first_of(ending, serving, reporting, refreshing)
            await self._stop(serving)
            self._dirty.set()
            await _first_of(asyncio.create_task(self._unwanted.wait()), reporting)
            await _cancel(reporting)
            await self._bury()
        finally:
            await _cancel(ending, serving, reporting, refreshing)

    async def _serve(self) -> None:
        if self._place.pod["status"].get("phase") in TERMINAL:
            self._stopped = True
            return
        await self._mount()
        sandbox = self._place.sandbox
        for container in sandbox.init.values():
            await keep(self._place, container)
        if initialized(sandbox):
            async with asyncio.TaskGroup() as group:
                for container in sandbox.containers.values():
                    group.create_task(keep(self._place, container))

    async def _mount(self) -> None:
        while not self._mounted:
            try:
                await mount(self._place.pod, self._place.sandbox, self._place.sources)
                self._mounted = True
            except Unsatisfied as error:
                self._explain(str(error))
            except (Unreachable, ApiRefused):
                pass
            self._dirty.set()
            if not self._mounted:
                await asyncio.sleep(_RETRY_S)

    async def _keep_volumes_fresh(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._marked.wait(), self._place.settings.sync_seconds)
            self._marked.clear()
            if self._mounted:
                await self._refresh()

    async def _refresh(self) -> None:
        try:
            await refresh(self._place.pod, self._place.sandbox, self._place.sources)
        except Unsatisfied:
            return  # the files stay as they were
        except (Unreachable, ApiRefused):
            self._marked.set()
            await asyncio.sleep(_RETRY_S)

    def _explain(self, message: str) -> None:
        for container in self._place.sandbox.all():
            container.message = message

    async def _stop(self, serving: asyncio.Task) -> None:
        await asyncio.gather(*(stop(self._place, each) for each in self._place.sandbox.containers.values()))
        await asyncio.gather(*(stop(self._place, each) for each in self._place.sandbox.init.values()))
        await _cancel(serving)
        for container in self._place.sandbox.all():
            await _note_end(container)
        self._stopped = True

    async def _bury(self) -> None:
        """Report the end, then delete the object as the kubelet does: without grace, and only this very object."""
        while not self._gone and not await self._reported():
            await asyncio.sleep(_RETRY_S)
        options = {"gracePeriodSeconds": 0, "preconditions": {"uid": self._place.sandbox.uid}}
        while not self._gone:
            try:
                await self._api.delete(self._path, options)
                self._gone = True
            except ApiRefused as refusal:
                self._gone = refusal.status in {404, 409}
            except Unreachable:
                await asyncio.sleep(_RETRY_S)
        self._runtime.remove(self._place.sandbox.uid)

    async def _report(self) -> None:
        while True:
            await self._dirty.wait()
            self._dirty.clear()
            while not await self._reported():
                await asyncio.sleep(_RETRY_S)

    async def _reported(self) -> bool:
        """Send the status if it differs; False when it has to be tried again."""
        if self._unseen_end():
            return True
        wanted = status(self._place.pod, self._place.sandbox, mounted=self._mounted, stopped=self._stopped)
        if wanted == self._sent and agrees(self._place.pod, wanted):
            return True
        addresses = [{"$patch": "replace"}, *wanted["podIPs"]]
        body = {"metadata": {"uid": self._place.sandbox.uid}, "status": {**wanted, "podIPs": addresses}}
        try:
            self._place.pod = await self._api.patch(f"{self._path}/status", body, STRATEGIC)
        except Unreachable:
            return False
        except ApiRefused as refusal:
            if refusal.status == 422:
                raise
            return refusal.status in {404, 409}
        self._sent = wanted
        return True

    def _unseen_end(self) -> bool:
        """Whether the pod ended before this node knew it: its status is somebody else's."""
        ran = any(each.starts for each in self._place.sandbox.all())
        return not ran and self._place.pod["status"].get("phase") in TERMINAL


def _marks(pod: Object) -> tuple[Object, Object]:
    return pod["metadata"].get("annotations", {}), pod["metadata"].get("labels", {})


async def _note_end(container: Container) -> None:
    if container.process is not None:
        container.finish(await container.process.wait(), "")
    container.waiting = "" if container.ended else container.waiting


async def _first_of(awaited: asyncio.Task, *others: asyncio.Task) -> None:
    """Wait for ``awaited``; an error of another task is raised at once."""
    waiting = {awaited, *others}
    try:
        while not awaited.done():
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
    finally:
        awaited.cancel()


async def _cancel(*tasks: asyncio.Task) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
