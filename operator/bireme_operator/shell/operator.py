"""Puts the operator together and lets it run: connection, Lease, watches, workers. Whatever of it ends, ends all of it.

Kopf cancels every task of its loop that it did not find when it began, so ours are begun before it and ended after.
"""

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

import aiohttp
import kopf

from bireme_operator.kube.client import Kube, connected
from bireme_operator.kube.errors import KubeError
from bireme_operator.kube.resources import DEPLOYMENTS
from bireme_operator.local.clock import steady_clock
from bireme_operator.queue import WorkQueue
from bireme_operator.shell.belongings import Belongings
from bireme_operator.shell.case import Tools
from bireme_operator.shell.election import Candidate, Election
from bireme_operator.shell.handlers import registry_of
from bireme_operator.shell.metrics import OperatorMetrics
from bireme_operator.shell.nodes import Nodes
from bireme_operator.shell.places import Places
from bireme_operator.shell.probe import serving
from bireme_operator.shell.reconciler import Reconciler
from bireme_operator.shell.settings import Settings
from bireme_operator.shell.silence import Silence
from bireme_operator.shell.store import Key, Store

log = logging.getLogger(__name__)

_CRD_RETRY_S: Final = 0.5

Visit = Callable[[Key], Awaitable[float | None]]
Worker = Callable[[WorkQueue[Key], Visit], Awaitable[None]]


async def run(settings: Settings, worker: Worker, stop: asyncio.Event) -> None:
    """Run until ``stop`` is set.

    Raises:
        LostLease: another process may act now.
        PortTaken: the probe port is not to be had.
    """
    async with connected() as kube, aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        await _Operator(settings, kube, session).run(worker, stop)


class _Operator:
    def __init__(self, settings: Settings, kube: Kube, session: aiohttp.ClientSession) -> None:
        self._settings = settings
        self._metrics = OperatorMetrics(self._leads, lambda: len(self._queue))
        self._kube = kube = kube.witnessed(self._metrics)
        # Delays and documents are dated by a clock that never jumps.
        clock = steady_clock()
        candidate = Candidate(settings.lease_namespace, settings.lease_name, settings.identity, settings.lease_seconds)
        self._election = Election(kube, candidate, time.monotonic)
        self._store = Store(clock, settings.watched, Silence(clock, settings.silent_node_seconds))
        self._belongings = Belongings()
        self._queue: WorkQueue[Key] = WorkQueue(clock, random.random)
        self._nodes = Nodes(kube, clock)
        tools = Tools(
            kube=kube.guarded(self._election.may_write),
            store=self._store,
            belongings=self._belongings,
            session=session,
            clock=clock,
            master_key=settings.master_key_file.read_bytes().strip(),
            worker_image=settings.worker_image,
            router_image=settings.router_image,
            identity=settings.identity,
            nodes=self._nodes,
            sees_nodes=not settings.namespaces,
            places=Places(kube, clock, self._store),
            metrics=self._metrics,
        )
        self._reconciler = Reconciler(tools, self._queue)

    async def run(self, worker: Worker, stop: asyncio.Event) -> None:
        """Run until ``stop`` is set or a part ends."""
        async with serving(self._settings.probe_port, self._health, self._metrics):
            await self._run(worker, stop)

    async def _run(self, worker: Worker, stop: asyncio.Event) -> None:
        loop = asyncio.get_running_loop()
        duties = [loop.create_task(self._election.run())]
        duties += [loop.create_task(self._work(worker)) for _ in range(self._settings.workers)]
        duties += [loop.create_task(self._nodes.run()), loop.create_task(_wait(stop))]
        watching = loop.create_task(self._watch())
        try:
            done, _ = await asyncio.wait([*duties, watching], return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in [*duties, watching]:
                task.cancel()
            await asyncio.gather(*duties, watching, return_exceptions=True)
            await self._reconciler.close()
            with suppress(TimeoutError):
                async with asyncio.timeout(2.0):
                    await self._election.release()

    async def _work(self, worker: Worker) -> None:
        await self._election.won.wait()
        await worker(self._queue, self._visit)

    async def _visit(self, key: Key) -> float | None:
        with self._metrics.reconcile():
            return await self._reconciler.visit(key)

    async def _await_crd(self) -> None:
        """Kopf looks once at which kinds there are, and would wait for ever for one that came a moment later."""
        told = False
        while True:
            try:
                if await self._kube.serves(DEPLOYMENTS):
                    return
            except KubeError as error:
                log.warning("the API server can't be asked yet: %s", error)
            if not told:
                log.warning("the API server knows no %s yet: kubectl apply -f crds/", DEPLOYMENTS.plural)
                told = True
            await asyncio.sleep(_CRD_RETRY_S)

    async def _watch(self) -> None:
        await self._await_crd()
        namespaces = self._settings.namespaces
        options = kopf.OperatorSettings()
        options.scanning.disabled = bool(namespaces)  # a namespaced role may list neither CRDs nor namespaces
        await kopf.operator(
            registry=registry_of(self._store, self._belongings, self._queue, nodes=not namespaces),
            settings=options,
            standalone=True,
            clusterwide=not namespaces,
            namespaces=namespaces,
            stop_flag=asyncio.Event(),  # signals are main's
        )

    def _leads(self) -> bool:
        return self._election.won.is_set()

    def _health(self) -> dict[str, object]:
        return {"leading": self._leads(), "queued": len(self._queue)}


async def _wait(event: asyncio.Event) -> None:
    await event.wait()
