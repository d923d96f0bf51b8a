"""Puts a local run together: directory and lock, processes, listeners, loop; and takes it apart again."""

import asyncio
import errno
import sys
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Protocol

import aiohttp

from bireme.api import InferenceDeployment
from bireme_operator.local.addresses import Addresses, stage_ports, trouble_at
from bireme_operator.local.backend import LocalBackend
from bireme_operator.local.clock import steady_clock
from bireme_operator.local.errors import NoSuchAddress, PortTaken
from bireme_operator.local.event_log import EventLog
from bireme_operator.local.kubelet import Kubelet
from bireme_operator.local.mounts import Mounts
from bireme_operator.local.router import RouterKeeper, router_command
from bireme_operator.local.rundir import RunDir, run_root
from bireme_operator.local.runner import Runner
from bireme_operator.local.status_file import StatusFile
from bireme_operator.local.watcher import Watcher
from bireme_operator.plan.desired import Desired
from bireme_operator.plan.plan import Plan

SUPERVISOR = (sys.executable, "-m", "bireme_worker.supervisor.main")


@dataclass(frozen=True)
class Place:
    """Where a deployment runs and what runs it. ``router`` None is Bireme's own with the deployment's settings."""

    host: str
    port: int
    mounts: Mounts
    supervisor: Sequence[str] = SUPERVISOR
    router: Sequence[str] | None = None

    @property
    def endpoint(self) -> str:
        """The base URL of the router."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"


class Audience(Protocol):
    """Who follows a run."""

    def told(self, plan: Plan) -> None:
        """Take note of a plan."""

    def say(self, text: str) -> None:
        """Show people a sentence."""


@asynccontextmanager
async def session(
    deployment: InferenceDeployment, place: Place, audience: Audience
) -> AsyncIterator[tuple[Runner, RunDir]]:
    """Prepare a run of ``deployment``; the caller calls ``run`` of the runner. Everything is closed at the end.

    Raises:
        LocalError: the run can't begin: already running, port taken, directory or address unusable.
    """
    rundir = RunDir(run_root() / deployment.name).open()
    try:
        _look_at_the_port(place)
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
            runner, watcher = _assemble(deployment, place, rundir, http, audience)
            try:
                yield runner, rundir
            finally:
                await watcher.close()
                runner.events.close()
    finally:
        rundir.close()


def _look_at_the_port(place: Place) -> None:
    trouble = trouble_at(place.host, place.port)
    if trouble is None:
        return
    if trouble.errno == errno.EADDRINUSE:
        raise PortTaken(
            f"port {place.port} on {place.host} is in use: stop what listens there "
            f"(`ss -ltnp 'sport = :{place.port}'` names it), or choose another port with --port"
        )
    raise NoSuchAddress(
        f"the router can't listen on {place.host}, port {place.port} ({trouble.strerror}): "
        "give an address of this machine by --host, such as 127.0.0.1, and a port from 1024 up by --port"
    )


def _assemble(
    deployment: InferenceDeployment,
    place: Place,
    rundir: RunDir,
    http: aiohttp.ClientSession,
    audience: Audience,
) -> tuple[Runner, Watcher]:
    clock, news = steady_clock(), asyncio.Event()
    desired = replace(Desired.of(deployment, uid=str(uuid.uuid4())), generation=1)
    addresses = Addresses(stage_ports(desired.tensor))
    addresses.give_back(addresses.take())  # says at once what would otherwise fail every group
    watcher = Watcher(http, clock, news.set)
    kubelet = Kubelet(
        place.supervisor,
        policy=desired.recovery,
        rundir=rundir,
        addresses=addresses,
        clock=clock,
        changed=news.set,
    )
    backend = LocalBackend(
        deployment,
        desired,
        mounts=place.mounts,
        rundir=rundir,
        kubelet=kubelet,
        watcher=watcher,
        session=http,
        changed=news.set,
    )
    command = place.router or router_command(rundir, place.host, place.port, deployment.spec.router)
    router = RouterKeeper(command, rundir.routes, rundir.log("router"), news.set, audience.say)
    runner = Runner(
        deployment=deployment,
        desired=desired,
        backend=backend,
        kubelet=kubelet,
        router=router,
        status_file=StatusFile(rundir.status),
        events=EventLog(rundir.events),
        clock=clock,
        news=news,
        endpoint=f"{place.endpoint}/v1",
        told=audience.told,
    )
    return runner, watcher
