"""A node is lost while real workers stream: every stream ends whole, with the ids that the oracle draws.

The two shapes in which nobody of the group is left to hold a stream: a pipeline of 1, and a lost leader. What comes
back with the node has been replaced, and must neither serve nor stay.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.controlplane.polling import eventually
from tests.controlplane.stopwatch import Stopwatch
from tests.faults.bench import Judge
from tests.faults.tiny import MODEL
from tests.fleet.fixtures import WORKER_IMAGE
from tests.fleet.fleet import Fleet
from tests.fleet.node import Node
from tests.operator.conftest import StartOperator
from tests.operator.deployments import Deployments
from tests.operator.test_fleet import APART, NO_ROUTER, router
from tests.operator.test_live_streams import Clients, carried_on, running
from tests.operator.test_nodes import FAST

STREAMS = 4
LOST = (0, 0)


@dataclass(frozen=True)
class Loss:
    """How a node is lost and how it returns, and the deployment that it is part of."""

    way: Callable[[Node], None]
    back: Callable[[Node], None]
    replicas: int
    stages: int


KILLED = Loss(Node.kill, Node.boot, replicas=2, stages=1)
FROZEN = Loss(Node.freeze, Node.thaw, replicas=1, stages=2)


def serve(deployments: Deployments, model: Path, loss: Loss) -> None:
    worker = {
        "name": "worker",
        "image": WORKER_IMAGE,
        "env": [{"name": "OMP_NUM_THREADS", "value": "1"}, {"name": "BIREME_SPARE_RANK", "value": "0"}],
        "resources": {"requests": {"cpu": "1"}},
    }
    apart = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [APART, NO_ROUTER]}}
    deployments.create(
        replicas=loss.replicas,
        stages=loss.stages,
        model={"name": MODEL, "source": {"path": str(model)}, "revision": "one"},
        engine={"maxModelLength": 2048, "kvCache": {"bytes": "64Mi"}},
        template={"spec": {"containers": [worker], "affinity": apart}},
        recovery=FAST,
    )
    deployments.await_condition("Ready")


@pytest.mark.system
@pytest.mark.timeout(240, func_only=True)
@pytest.mark.parametrize("loss", [KILLED, FROZEN], ids=["killed-pipeline-of-1", "frozen-leader-of-2"])
async def test_the_streams_of_a_lost_node_go_on_and_what_returns_with_it_is_fenced(
    loss: Loss, fleet: Fleet, deployments: Deployments, start_operator: StartOperator, tiny: Path
) -> None:
    start_operator(worker_image=WORKER_IMAGE, cluster=True)
    await asyncio.to_thread(serve, deployments, tiny, loss)
    url = await asyncio.to_thread(router, fleet.plane, deployments.namespace, loss.replicas)
    before = deployments.living()
    node = fleet.node(before[LOST]["spec"]["nodeName"])
    (old,) = node.sandboxes
    clients = Clients(url)
    async with clients.asking(STREAMS):
        await asyncio.to_thread(eventually, lambda: clients.are_deep(STREAMS) and running(before[LOST]) > 0)
        await asyncio.to_thread(loss.way, node)
        with Stopwatch() as since:
            await asyncio.to_thread(eventually, lambda: deployments.incarnation(*LOST) == "2")
        after = deployments.living()
        since.assert_made(after[LOST], within_s=8)
        await asyncio.to_thread(deployments.await_condition, "Ready")
        await asyncio.to_thread(loss.back, node)
        await asyncio.to_thread(eventually, lambda: len(deployments.pods()) == len(before) and not old.pids())
    Judge(tiny).check(clients.asks)
    assert carried_on(url), "what the node ran was not carried on elsewhere"
    changed = {place for place, uid in deployments.uids().items() if uid != before[place]["metadata"]["uid"]}
    assert changed == {LOST}
