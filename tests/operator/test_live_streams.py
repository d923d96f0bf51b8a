"""A group goes while it streams: whoever sends it away, every stream ends whole, with the ids that the oracle draws."""

import asyncio
import base64
import contextlib
import random
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest

from bireme.names import GroupState, Label, Metric, Port
from bireme.wire.routes import Route, Routes, write_routes
from tests.controlplane.cluster import ControlPlane
from tests.controlplane.polling import eventually
from tests.faults import kinds
from tests.faults.bench import Judge
from tests.faults.tiny import MODEL
from tests.fleet.fixtures import WORKER_IMAGE
from tests.fleet.fleet import Fleet
from tests.operator.before import ROOT, operator_before, replace_crd
from tests.operator.conftest import StartOperator
from tests.operator.deployments import Deployments, label
from tests.operator.process import OperatorProcess
from tests.operator.test_fleet import APART, NO_ROUTER, gauge, router
from tests.support.router_process import RouterProcess

SILENT_S: Final = 2
STREAMS: Final = 6
"""So many that no group is ever without one, while it takes any."""
DEEP: Final = 20
"""Ids of a stream that is well under way."""
TOKENS: Final = (300, 900)
"""Between these lengths, so that streams that began together don't end together."""

Way = Callable[[Fleet, Deployments], None]


@dataclass
class Clients:
    """Clients that ask one stream after the other; ``asks`` has all of them. No fast machine is through before the end."""

    url: str
    asks: list[kinds.Ask] = field(default_factory=list)
    _dice: random.Random = field(default_factory=lambda: random.Random(7))
    _over: asyncio.Event = field(default_factory=asyncio.Event)

    def are_deep(self, number: int) -> bool:
        """Whether of each of the first ``number`` streams some ids have come."""
        return len(self.asks) >= number and all(ask.delivered > DEEP for ask in self.asks[:number])

    @contextlib.asynccontextmanager
    async def asking(self, number: int) -> AsyncIterator[None]:
        """Ask while the block runs; at its end what was begun is awaited."""
        async with aiohttp.ClientSession() as session:
            clients = [asyncio.create_task(self._ask(session)) for _ in range(number)]
            try:
                yield
            finally:
                self._over.set()
                await asyncio.gather(*clients)

    async def _ask(self, session: aiohttp.ClientSession) -> None:
        while not self._over.is_set():
            self.asks.append(ask := kinds.make("greedy", MODEL, self._dice, self._dice.randint(*TOKENS)))
            await kinds.run(session, self.url, ask)


def leader(deployments: Deployments) -> tuple[str, str]:
    """Namespace and name of the pod of the group that is to go."""
    return deployments.namespace, str(deployments.living()[0, 0]["metadata"]["name"])


def is_evicted(fleet: Fleet, deployments: Deployments) -> None:
    namespace, name = leader(deployments)
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": namespace}}
    fleet.plane.api.post(f"/api/v1/namespaces/{namespace}/pods/{name}/eviction", json=eviction).raise_for_status()


def is_deleted(fleet: Fleet, deployments: Deployments) -> None:
    namespace, name = leader(deployments)
    deleted = fleet.plane.kubectl("delete", "pod", name, "-n", namespace, "--wait=false")
    assert deleted.returncode == 0, deleted.stderr


def is_scaled_down(_: Fleet, deployments: Deployments) -> None:
    deployments.change(replicas=1)


def is_rolled(_: Fleet, deployments: Deployments) -> None:
    deployments.change(engine={"maxRunningRequests": 8})


CASES: dict[Way, int] = {is_scaled_down: 0, is_rolled: 0, is_evicted: 0, is_deleted: 120}
"""For how long what runs may end where it is: 0 hands it over at once, and after the last it has all come to its end."""


def serve(deployments: Deployments, model: Path, drain_s: int, *, spare_ranks: str | None = "0", **pod: Any) -> None:
    """Let two groups serve; an earlier release took no ``spare_ranks``."""
    tuned = {"OMP_NUM_THREADS": "1", "BIREME_SPARE_RANK": spare_ranks}
    worker = {
        "name": "worker",
        "image": WORKER_IMAGE,
        "env": [{"name": name, "value": value} for name, value in tuned.items() if value is not None],
        "resources": {"requests": {"cpu": "1"}},
    }
    deployments.create(
        replicas=2,
        stages=1,
        model={"name": MODEL, "source": {"path": str(model)}, "revision": "one"},
        engine={"maxModelLength": 2048, "kvCache": {"bytes": "64Mi"}},
        template={"spec": {"containers": [worker], **pod}},
        rollout={"drainTimeoutSeconds": drain_s, "maxSurge": 0, "maxUnavailable": 1},
    )
    deployments.await_condition("Ready")


def running(pod: dict[str, Any]) -> float:
    """Requests that this leader works on."""
    return sum(gauge(f"http://{pod['status']['podIP']}:{int(Port.ADMIN)}", Metric.REQUESTS_RUNNING))


def carried_on(url: str) -> float:
    """Streams that the router has continued elsewhere, and those sent again of which no id had come."""
    return sum(gauge(url, Metric.ROUTER_RESUMES) + gauge(url, Metric.ROUTER_RESENDS))


@pytest.fixture(scope="module")
def judge(tiny: Path) -> Judge:
    return Judge(tiny)


@pytest.mark.system
@pytest.mark.timeout(240, func_only=True)
@pytest.mark.parametrize(("way", "drain_s"), CASES.items(), ids=lambda one: getattr(one, "__name__", f"{one} s"))
async def test_a_stream_on_a_group_that_goes_ends_whole(
    way: Way,
    drain_s: int,
    fleet: Fleet,
    deployments: Deployments,
    start_operator: StartOperator,
    *,
    tiny: Path,
    judge: Judge,
) -> None:
    start_operator(worker_image=WORKER_IMAGE)
    await asyncio.to_thread(serve, deployments, tiny, drain_s)
    url = await asyncio.to_thread(router, fleet.plane, deployments.namespace, 2)
    before, clients = deployments.uids(), Clients(url)
    async with clients.asking(STREAMS):
        pods = deployments.living().values()
        await asyncio.to_thread(eventually, lambda: clients.are_deep(STREAMS) and all(running(pod) > 0 for pod in pods))
        await asyncio.to_thread(way, fleet, deployments)
        await asyncio.to_thread(eventually, lambda: deployments.uids() != before)
    judge.check(clients.asks)
    if drain_s == 0:
        assert carried_on(url), "what the group ran when it went was not carried on elsewhere"
    await asyncio.to_thread(deployments.await_condition, "Ready")


@pytest.mark.system
@pytest.mark.timeout(240, func_only=True)
async def test_a_stopped_kubelet_loses_no_stream_and_its_group_is_had_elsewhere_after_a_while(
    fleet: Fleet, deployments: Deployments, start_operator: StartOperator, tiny: Path, judge: Judge
) -> None:
    start_operator(worker_image=WORKER_IMAGE, cluster=True, arguments=[f"--silent-node-seconds={SILENT_S}"])
    apart = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [APART, NO_ROUTER]}}
    await asyncio.to_thread(serve, deployments, tiny, 0, affinity=apart)
    url = await asyncio.to_thread(router, fleet.plane, deployments.namespace, 2)
    node = fleet.node(deployments.living()[0, 0]["spec"]["nodeName"])
    clients = Clients(url)
    await asyncio.to_thread(node.stop_kubelet)
    await asyncio.to_thread(eventually, lambda: deployments.events("GroupMoves"))
    async with clients.asking(2):
        await asyncio.to_thread(eventually, lambda: two_serve_without(deployments, node.name), within=120)
    judge.check(clients.asks)
    await asyncio.to_thread(node.start_kubelet)
    await asyncio.to_thread(eventually, lambda: len(deployments.pods()) == 2)
    await asyncio.to_thread(deployments.await_condition, "Ready")


@pytest.fixture
def old(crd: ControlPlane, tmp_path: Path, start_operator: StartOperator) -> Iterator[OperatorProcess]:
    """The operator of the release before."""
    with operator_before(crd, tmp_path, lambda: start_operator("old", worker_image=WORKER_IMAGE)) as operator:
        yield operator


@pytest.mark.system
@pytest.mark.timeout(240, func_only=True)
async def test_t12_streams_run_on_where_they_are_while_the_operator_of_the_release_before_is_replaced(
    old: OperatorProcess,
    fleet: Fleet,
    deployments: Deployments,
    start_operator: StartOperator,
    *,
    tiny: Path,
    judge: Judge,
    tmp_path: Path,
) -> None:
    await asyncio.to_thread(serve, deployments, tiny, 0, spare_ranks=None)
    before, pods = deployments.uids(), deployments.living().values()
    async with router_beside(deployments, tmp_path) as url:
        clients = Clients(url)
        async with clients.asking(STREAMS):
            await asyncio.to_thread(eventually, lambda: all(running(pod) > 0 for pod in pods))
            assert await asyncio.to_thread(old.stop) == 0
            await asyncio.to_thread(replace_crd, fleet.plane, ROOT, takes_new=True)
            start_operator("new", worker_image="bireme-worker:next")
            await asyncio.to_thread(eventually, lambda: deployments.lease()["spec"]["holderIdentity"] == "new")
            deployments.change(recovery={"restartBudget": {"limit": 7}})  # touches no pod, but asks for a judgement
            await asyncio.to_thread(deployments.await_ready)
            asked = len(clients.asks)
            await asyncio.to_thread(eventually, lambda: len(clients.asks) > asked)
        assert carried_on(url) == 0, "a stream had to go on elsewhere"
    judge.check(clients.asks)
    assert deployments.uids() == before


@contextlib.asynccontextmanager
async def router_beside(deployments: Deployments, folder: Path) -> AsyncIterator[str]:
    """A router of nobody's, that knows the groups as they are: that of the deployment is replaced with its operator."""
    own = RouterProcess(folder)
    routes = tuple(route(deployments, pod, folder) for pod in deployments.living().values())
    (folder / "routes.json").write_bytes(write_routes(Routes(1, (MODEL,), routes)))
    await own.start()
    try:
        await asyncio.to_thread(eventually, lambda: sum(gauge(own.url, Metric.ROUTER_GROUP_READY)) == len(routes))
        yield own.url
    finally:
        await own.stop()


def route(deployments: Deployments, leader: dict[str, Any], folder: Path) -> Route:
    """Where a group is to be had, and in a file what proves it."""
    name, group = leader["metadata"]["name"], label(leader, Label.GROUP_INDEX)
    secret = next(one["secret"] for one in leader["spec"]["volumes"] if one["name"] == "token")
    url = f"/api/v1/namespaces/{deployments.namespace}/secrets/{secret['secretName']}"
    tokens = deployments.plane.api.get(url).raise_for_status().json()["data"]
    (folder / name).write_bytes(base64.b64decode(tokens[secret["items"][0]["key"]]))
    uid, host = f"{deployments.get()['metadata']['uid']}-{group}", f"http://{leader['status']['podIP']}"
    incarnation, ports = int(label(leader, Label.INCARNATION)), (int(Port.HTTP), int(Port.ADMIN))
    http, admin = (f"{host}:{port}" for port in ports)
    return Route(uid, int(group), name, incarnation, http, admin, str(folder / name))


def two_serve_without(deployments: Deployments, node: str) -> bool:
    """Whether as many groups serve as are wanted, and none of a node."""
    groups = deployments.get()["status"]["groups"]
    serving = [group for group in groups if group["state"] == GroupState.SERVING]
    return len(serving) == 2 and not any(node in group["nodes"] for group in serving)
