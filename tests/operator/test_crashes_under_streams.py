"""The operator is killed at every step of a rollout while real workers stream through the real router: nobody notices.

A step is a write of the operator that none before it has made. The one that makes it is killed as soon as it is done,
and is not told so; what it has begun beside it is lost. The next one finds what there is, and takes the next step.
"""

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from bireme.names import Label, Port
from bireme_operator.plan.memory import GroupMemory
from bireme_operator.shell.notes import read_memory
from tests.controlplane.polling import eventually
from tests.controlplane.proxy import ApiProxy, Asked, Fault
from tests.faults.bench import Judge
from tests.fleet.fixtures import WORKER_IMAGE
from tests.fleet.fleet import Fleet
from tests.operator.conftest import StartOperator
from tests.operator.deployments import Deployments, label
from tests.operator.process import OperatorProcess
from tests.operator.test_fleet import router
from tests.operator.test_live_streams import Clients, carried_on, running, serve

STREAMS: Final = 2
"""All that they are told is judged, so there are no more than it takes."""
ACTS: Final = (("POST", "/controllerrevisions"), ("POST", "/pods"), ("DELETE", "/pods/"), ("PATCH", "/configmaps/"))
"""What a rollout makes, ends and tells the router. What is applied at every start is no part of it."""

Step = tuple[Any, ...]


def step_of(asked: Asked) -> Step | None:
    """What a write changes, whenever and by whomever it is made; None for one that is no part of a rollout."""
    if not asked.writes or "dryRun=" in asked.path:
        return None
    if "/status?" in asked.path:
        groups = read_memory(json.loads(asked.body)["status"]["memory"]).groups.values()
        return ("decide", *map(decided, groups))
    path = asked.path.partition("?")[0]
    acts = any(asked.method == method and part in path for method, part in ACTS)
    return (asked.method, path, asked.body) if acts else None


def decided(group: GroupMemory) -> Step:
    """What an operator has made up its mind to. The number of a pod that was never made is not used again, so no step."""
    return group.index, group.revision, group.draining and group.draining.purpose


@dataclass
class Killer:
    """Judges what goes through a proxy: kills the ``victim`` at each step that is not ``known`` yet."""

    victim: OperatorProcess | None = None
    known: set[Step] = field(default_factory=set)
    steps: list[Step] = field(default_factory=list)

    def __call__(self, asked: Asked) -> Fault | None:
        step = step_of(asked)
        if step is None:
            return None
        if self.victim is not None and self.victim.process.poll() is not None:
            return Fault(500)  # it was on its way when its sender was killed
        new = step not in self.known
        self.known.add(step)
        if self.victim is None or not new:
            return None
        self.steps.append(step)
        self.victim.process.kill()
        return Fault(500, done=True)


@dataclass
class Witness:
    """Looks at the groups while no operator lives, so that nothing is taken away between two of its looks."""

    deployments: Deployments
    made: set[str] = field(default_factory=set)

    def look(self) -> None:
        """Fail if more than one of two groups is down."""
        self.made |= {pod["metadata"]["uid"] for pod in self.deployments.pods()}
        living = self.deployments.living()
        assert any(map(serves, living.values())), f"no group serves; {sorted(living)} are there"


def serves(leader: dict[str, Any]) -> bool:
    """What a kubelet is told when it asks whether the pod is ready: in the object that stands a moment later."""
    url = f"http://{leader['status'].get('podIP')}:{int(Port.ADMIN)}/readyz"
    try:
        return httpx.get(url, trust_env=False, timeout=60).status_code == httpx.codes.OK
    except httpx.TransportError:
        return False


def roll(deployments: Deployments, killer: Killer, start: Callable[[str], OperatorProcess], witness: Witness) -> None:
    """Bring a rollout to its end with one operator for each step."""

    def rolled() -> bool:
        assert killer.victim is not None
        if killer.victim.process.poll() is not None:
            witness.look()
            deployments.free_lease()
            killer.victim = start(f"operator-{len(killer.steps)}")
        body = deployments.get()
        status = body["status"]
        current = status["observedGeneration"] == body["metadata"]["generation"]
        return bool(current and status["updatedReplicas"] == status["readyReplicas"] == 2)

    eventually(rolled, within=300)


@pytest.mark.system
@pytest.mark.timeout(360, func_only=True)  # a new operator for every step
async def test_t7_no_request_fails_while_the_operator_is_killed_at_every_step_of_a_rollout(
    fleet: Fleet, deployments: Deployments, start_operator: StartOperator, tiny: Path, tmp_path: Path
) -> None:
    killer, witness = Killer(), Witness(deployments)
    with ApiProxy(fleet.plane, killer) as proxy:
        kubeconfig = proxy.kubeconfig(tmp_path)

        def start(name: str) -> OperatorProcess:
            return start_operator(name, worker_image=WORKER_IMAGE, kubeconfig=kubeconfig)

        steady = start("steady")
        await asyncio.to_thread(serve, deployments, tiny, 0)
        url = await asyncio.to_thread(router, fleet.plane, deployments.namespace, 2)
        before, clients = deployments.living(), Clients(url)
        async with clients.asking(STREAMS):
            await asyncio.to_thread(
                eventually, lambda: clients.are_deep(STREAMS) and all(running(pod) > 0 for pod in before.values())
            )
            assert await asyncio.to_thread(steady.stop) == 0
            deployments.change(engine={"maxRunningRequests": 8})
            killer.victim = steady  # dead, so that nobody writes before the first to be killed is known
            await asyncio.to_thread(roll, deployments, killer, start, witness)
            killer.victim.kill()
        Judge(tiny).check(clients.asks)
        assert carried_on(url), "what the groups ran when they went was not carried on elsewhere"
    after = deployments.living()
    assert len({label(pod, Label.REVISION) for pod in [*before.values(), *after.values()]}) == 2
    assert len({label(pod, Label.REVISION) for pod in after.values()}) == 1
    print(len(clients.asks), "streams; killed at", *(step[:2] for step in killer.steps), sep="\n")
    taken = Counter(step[0] for step in killer.steps if step[0] == "decide" or "/pods" in step[1])
    assert (taken["POST"], taken["DELETE"]) == (2, 2), "each group is ended once and made once"
    assert taken["decide"] == 4, "and each of these acts is remembered before it is done"
    uids = {pod["metadata"]["uid"] for pod in [*before.values(), *after.values()]}
    assert witness.made == uids, "no pod is made twice"
