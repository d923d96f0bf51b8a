"""What benchmarks/operator_scale.py stands on: a control plane, KWOK nodes, a watch on pods, a bare client.

`Stages` answers the admin port of every pod of the ground: KWOK gives pods loopback addresses, so one process is five
hundred leaders, and the address that was dialled says which.
"""

import asyncio
import ssl
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import aiohttp
import msgspec
from aiohttp import web

from bireme.api.crd import COMMITTED
from bireme.names import Label, Port
from bireme.wire.requests import Limits
from bireme.wire.state import ReloadState, StateDocument
from tests.controlplane.arguments import Settings
from tests.controlplane.build import ensure
from tests.controlplane.cluster import WHOLE, ControlPlane, control_plane
from tests.controlplane.crds import await_established
from tests.controlplane.programs import Program
from tests.fleet.kwok import LOOPBACK, Kwok

_ROOT: Final = Path(__file__).parent.parent
_AT_ONCE: Final = 32
_CLIENT_RATE: Final = 2000
_GATHERED_S: Final = 1
_GO: Final = {"GOGC": "400"}
_BEHIND: Final = "10"
_NOWHERE: Final = "10.64.0.0/12"
_KWOK_WORKERS: Final = 16


_UNLIMITED: Final = Settings(
    audit=True,
    node_monitor_grace_seconds=50,
    client_rate=_CLIENT_RATE,
    # Without that rate each pod would have all addresses of its Service written anew.
    endpoints_gathered_seconds=_GATHERED_S,
    environment=_GO,
)


@dataclass(frozen=True)
class Ground:
    """A control plane, and the processes that make it up by name."""

    plane: ControlPlane
    processes: Mapping[str, int]


@contextmanager
def ground(nodes: int, *, throttled: bool = False, dialled: bool = False) -> Iterator[Ground]:
    """A whole control plane with the CRD and ``nodes`` KWOK nodes of 32 devices each.

    Scheduler, controller manager and KWOK are kept by nothing but the machine, unless they are ``throttled``: by
    Kubernetes' defaults the scheduler binds 50 pods a second, and one KWOK changes 4 pods at a time for all its nodes.
    Pods have addresses of this machine where they are ``dialled``; no Service takes those, so only there.
    """
    programs = ensure((*WHOLE, Program.KUBECTL, Program.KWOK))
    settings = Settings(audit=True, node_monitor_grace_seconds=50) if throttled else _UNLIMITED
    with (
        tempfile.TemporaryDirectory(prefix="operator-scale-") as name,
        control_plane(Path(name) / "plane", programs, settings) as plane,
    ):
        applied = plane.kubectl("apply", "-f", str(_ROOT / COMMITTED))
        assert applied.returncode == 0, applied.stderr
        await_established(plane, "-f", str(_ROOT / COMMITTED))
        kwok = Kwok(
            plane,
            programs[Program.KWOK],
            Path(name),
            lease_seconds=40,
            workers=0 if throttled else _KWOK_WORKERS,
            addresses=LOOPBACK if dialled else _NOWHERE,
            environment=settings.environment,
        )
        try:
            kwok.add_nodes(nodes, gpus=32)
            parts = {str(program): process.pid for program, process in plane.running.items()} | {"kwok": kwok.pid}
            if not throttled:
                _step_back(parts.values())
            yield Ground(plane, parts)
        finally:
            kwok.close()


def _step_back(processes: Iterable[int]) -> None:
    """Let others go first: in a cluster the operator does not wait for a core behind the control plane.

    Each part has its own session, and where the kernel shares the cores by session only the session's weight counts.
    """
    for pid in processes:
        with suppress(FileNotFoundError):
            Path(f"/proc/{pid}/autogroup").write_text(_BEHIND, encoding="ascii")


def namespace_of(plane: ControlPlane, name: str) -> str:
    """Make a namespace where pods may be made at once."""
    plane.api.post("/api/v1/namespaces", json={"metadata": {"name": name}}).raise_for_status()
    account = {"metadata": {"name": "default"}}
    assert plane.api.post(f"/api/v1/namespaces/{name}/serviceaccounts", json=account).status_code in {201, 409}
    return name


@asynccontextmanager
async def connection(plane: ControlPlane) -> AsyncIterator[aiohttp.ClientSession]:
    """The administrator's connections."""
    trusted = ssl.create_default_context(cafile=str(plane.files.authority))
    async with aiohttp.ClientSession(
        plane.url,
        headers={"authorization": f"Bearer {plane.users.admin.token}"},
        connector=aiohttp.TCPConnector(ssl=trusted, limit=_AT_ONCE + 4),
        timeout=aiohttp.ClientTimeout(total=None, sock_read=90),
        read_bufsize=4 * 1024 * 1024,
    ) as session:
        yield session


class _Meta(msgspec.Struct, rename="camel"):
    name: str = ""
    uid: str = ""
    resource_version: str = ""
    labels: dict[str, str] = {}
    deletion_timestamp: str = ""
    owner_references: list[dict[str, Any]] = []


class _Condition(msgspec.Struct):
    type: str
    status: str


class _PodStatus(msgspec.Struct, rename="camel"):
    conditions: list[_Condition] = []
    pod_ip: str = msgspec.field(name="podIP", default="")


class _Pod(msgspec.Struct):
    metadata: _Meta = msgspec.field(default_factory=_Meta)
    status: _PodStatus = msgspec.field(default_factory=_PodStatus)


class _List(msgspec.Struct):
    metadata: _Meta
    items: list[_Pod]


class _Event(msgspec.Struct):
    type: str
    object: _Pod


@dataclass
class Sight:
    """One pod: when it was first seen, first seen ready, and gone; in seconds of the monotonic clock."""

    name: str
    group: str
    made: float
    ready: float = 0.0
    gone: float = 0.0


@dataclass
class Pods:
    """The pods of one namespace as a watch tells them. ``alive`` raises when who makes them is no more."""

    session: aiohttp.ClientSession
    namespace: str
    alive: Callable[[], None] = lambda: None
    by_uid: dict[str, Sight] = field(default_factory=dict)
    at: dict[str, _Pod] = field(default_factory=dict)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def living(self) -> list[Sight]:
        """Those that are there."""
        return [pod for pod in self.by_uid.values() if not pod.gone]

    async def follow(self) -> None:
        """List and watch until cancelled; the server ends watches that it can't serve, so again and again."""
        path, now = f"/api/v1/namespaces/{self.namespace}/pods", time.monotonic
        while True:
            async with self.session.get(path) as answer:
                found = msgspec.json.decode(await answer.read(), type=_List)
            for pod in found.items:
                self._see(pod, gone=False)
            for uid in self.by_uid.keys() - {pod.metadata.uid for pod in found.items}:
                self.by_uid[uid].gone = self.by_uid[uid].gone or now()
            with suppress(aiohttp.ClientError, OSError, TimeoutError):
                await self._watch(path, found.metadata.resource_version)

    async def _watch(self, path: str, version: str) -> None:
        decoder = msgspec.json.Decoder(_Event)
        query = {"watch": "1", "timeoutSeconds": "600", "resourceVersion": version}
        async with self.session.get(path, params=query) as response:
            while line := await response.content.readline():
                event = decoder.decode(line)
                if event.type == "ERROR":
                    return
                self._see(event.object, gone=event.type == "DELETED")

    def _see(self, pod: _Pod, *, gone: bool) -> None:
        meta, now = pod.metadata, time.monotonic()
        sight = self.by_uid.setdefault(meta.uid, Sight(meta.name, meta.labels.get(Label.GROUP_INDEX, ""), now))
        if gone:
            sight.gone = now
        if pod.status.pod_ip:
            self.at[pod.status.pod_ip] = pod
        if not sight.ready and any(one.type == "Ready" and one.status == "True" for one in pod.status.conditions):
            sight.ready = now
        self.changed.set()

    async def when(self, holds: Callable[[], bool], within_s: float = 300.0) -> None:
        """Wait until it holds."""
        async with asyncio.timeout(within_s):
            while not holds():
                self.alive()
                await asyncio.sleep(0.01)

    async def more_than(self, count: int) -> None:
        """Wait until more than ``count`` pods are there."""
        await self.when(lambda: len(self.living) > count)

    async def until(self, made: int, ready: int, within_s: float = 300.0) -> None:
        """Wait until exactly ``made`` pods are there and ``ready`` of them are ready."""
        async with asyncio.timeout(within_s):
            while True:
                living = self.living
                if len(living) == made and sum(pod.ready > 0 for pod in living) == ready:
                    return
                self.alive()
                self.changed.clear()
                with suppress(TimeoutError):
                    await asyncio.wait_for(self.changed.wait(), 1.0)
                await asyncio.sleep(0.02)  # many events in one look: the meter must not be the load


async def bare(session: aiohttp.ClientSession, pods: Pods, groups: int) -> dict[str, float]:
    """A client that makes two pods a group and nothing else, and then takes all away."""
    path = f"/api/v1/namespaces/{pods.namespace}/pods"
    worker = {"name": "worker", "image": "simulated", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    spec = {"containers": [worker], "automountServiceAccountToken": False}
    began = time.monotonic()
    names = [f"bare-{index}-{stage}" for index in range(groups) for stage in range(2)]
    posts = [("POST", path, {"metadata": {"name": name}, "spec": spec}) for name in names]
    making = asyncio.create_task(_all(posts, session))
    await pods.more_than(groups)
    lost = await _replace_one(session, pods, path, spec)
    await making
    created = max(pod.made for pod in pods.by_uid.values()) - began
    await pods.until(2 * groups, 2 * groups)
    ready = time.monotonic() - began
    began = time.monotonic()
    left = [pod.name for pod in pods.living]
    await _all([("DELETE", f"{path}/{name}", {"gracePeriodSeconds": 5}) for name in left], session)
    await pods.until(0, 0)
    to_zero = time.monotonic() - began
    return {"created": groups / created, "ready": groups / ready, "to_zero_s": to_zero, "replaced_in_flood_s": lost}


async def _replace_one(session: aiohttp.ClientSession, pods: Pods, path: str, spec: Mapping[str, Any]) -> float:
    """Delete a pod in the midst of it, and make another once it is seen to be gone; when that was seen."""
    victim, began = pods.living[0], time.monotonic()
    await _all([("DELETE", f"{path}/{victim.name}", {"gracePeriodSeconds": 0})], session)
    await pods.when(lambda: victim.gone > 0)
    await _all([("POST", path, {"metadata": {"name": "bare-again"}, "spec": spec})], session)
    await pods.when(lambda: any(pod.name == "bare-again" for pod in pods.living))
    return next(pod.made for pod in pods.living if pod.name == "bare-again") - began


async def _all(calls: list[tuple[str, str, dict[str, Any]]], session: aiohttp.ClientSession) -> None:
    left = iter(calls)

    async def work() -> None:
        for method, path, body in left:
            async with session.request(method, path, json=body) as response:
                await response.read()
                response.raise_for_status()

    await asyncio.gather(*(work() for _ in range(_AT_ONCE)))


class Stages:
    """Admin ports of stages that serve as soon as they are asked, each on its pod's loopback address."""

    def __init__(self, pods: Pods) -> None:
        self._pods = pods
        self._draining: set[str] = set()

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        """Answer for as long as the block lasts."""
        app = web.Application()
        app.add_routes([web.get("/watch", self._watch), web.post("/drain", self._drain), web.post("/leader", _yes)])
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        listening = asyncio.create_task(self._listen(runner))
        try:
            yield
        finally:
            listening.cancel()
            await runner.cleanup()

    async def _listen(self, runner: web.AppRunner) -> None:
        """Listen on the address of every pod that gets one: other addresses may be somebody else's."""
        known: set[str] = set()
        while True:
            for address in self._pods.at.keys() - known:
                await web.TCPSite(runner, address, int(Port.ADMIN)).start()
                known.add(address)
            await asyncio.sleep(0.02)

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        address = _dialled(request)
        response = web.StreamResponse()
        await response.prepare(request)
        with suppress(ConnectionResetError):
            while True:
                await response.write(self._document(address) + b"\n")
                await asyncio.sleep(1.0)
        return response

    async def _drain(self, request: web.Request) -> web.Response:
        self._draining.add(_dialled(request))
        return web.Response()

    def _document(self, address: str) -> bytes:
        meta = self._pods.at[address].metadata
        labels = meta.labels
        group = f"{meta.owner_references[0]['uid']}-{labels[Label.GROUP_INDEX]}"
        draining = address in self._draining
        values: dict[str, Any] = {
            "v": 1, "seq": 1, "group": group, "stage": 0, "incarnation": int(labels[Label.INCARNATION]),
            "boot": meta.uid, "epoch": 1 << 20, "state": "Draining" if draining else "Serving", "reason": "None",
            "message": "", "retry_after_s": 0.0, "revision": labels[Label.REVISION],
            "model_revision": labels[Label.MODEL_REVISION], "generation": 0, "reload": ReloadState(), "running": 0,
            "waiting": 0, "queued_prefill_tokens": 0, "kv_blocks_used": 0, "kv_blocks": 1, "block_size": 16, "step": 1,
            "step_age_s": 0.0, "draining": draining, "limits": Limits(0, 0, 0), "stages": (), "source": "/models/m",
        }  # fmt: skip
        return msgspec.json.encode(StateDocument(**values))


async def _yes(_: web.Request) -> web.Response:
    return web.Response()


def _dialled(request: web.Request) -> str:
    assert request.transport is not None
    return str(request.transport.get_extra_info("sockname")[0])
