"""A group goes while it streams: whoever sends it away, every stream ends whole, with the ids that the oracle draws."""

import asyncio
import contextlib
import random
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest

from bireme.names import GroupState, Metric, Port
from tests.controlplane.polling import eventually
from tests.faults import kinds
from tests.faults.bench import Judge
from tests.faults.tiny import MODEL, make_tiny
from tests.fleet.fixtures import WORKER_IMAGE
from tests.fleet.fleet import Fleet
from tests.operator.conftest import StartOperator
from tests.operator.deployments import Deployments
from tests.operator.test_fleet import APART, NO_ROUTER, gauge, router

SILENT_S: Final = 2
STREAMS: Final = 6
"""So many that no group is ever without one, while it takes any."""
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


def serve(deployments: Deployments, model: Path, drain_s: int, **pod: Any) -> None:
    worker = {
        "name": "worker",
        "image": WORKER_IMAGE,
        "env": [{"name": "OMP_NUM_THREADS", "value": "1"}, {"name": "BIREME_SPARE_RANK", "value": "0"}],
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


def resumed(url: str) -> float:
    """Streams that the router has carried on elsewhere."""
    return sum(gauge(url, Metric.ROUTER_RESUMES))


@pytest.fixture(scope="module")
def tiny(smollm2_dir: Path) -> Iterator[Path]:
    """A checkpoint beside the real one: what lies under /tmp is each pod's own there."""
    with tempfile.TemporaryDirectory(dir=smollm2_dir.parent) as folder:
        yield make_tiny(Path(folder) / MODEL)


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
        await asyncio.to_thread(eventually, lambda: all(running(pod) > 0 for pod in pods))
        await asyncio.to_thread(way, fleet, deployments)
        await asyncio.to_thread(eventually, lambda: deployments.uids() != before)
    judge.check(clients.asks)
    if drain_s == 0:
        assert resumed(url), "what the group ran when it went was not carried on elsewhere"
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


def two_serve_without(deployments: Deployments, node: str) -> bool:
    """Whether as many groups serve as are wanted, and none of a node."""
    groups = deployments.get()["status"]["groups"]
    serving = [group for group in groups if group["state"] == GroupState.SERVING]
    return len(serving) == 2 and not any(node in group["nodes"] for group in serving)
