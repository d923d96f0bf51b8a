"""Whether a cluster keeps native gangs is found out by what it does, and never from what it is only slow to do."""

from dataclasses import replace
from typing import Any

import pytest

from bireme.api import InferenceDeployment
from bireme.api.document import load
from bireme.names import Label
from bireme_operator.kube.client import Kube
from bireme_operator.kube.errors import NotFound
from bireme_operator.kube.resources import Resource
from bireme_operator.plan.actions import CreatePod
from bireme_operator.plan.memory import Gangless, GroupMemory, Memory
from bireme_operator.plan.observed import Phase, PodView
from bireme_operator.plan.providers import HEEDED_S, gang_key, no_gangs
from bireme_operator.render.owned import Owner
from bireme_operator.shell.gangs import Gangs
from bireme_operator.shell.notes import read_memory, write_memory
from bireme_operator.shell.pod_groups import NoGangs, PodGroups

NOW = 1000.0
OWNER = Owner("demo", "default", "uid")


def asked(topology: str = "[]", scheduler: str = "Native") -> InferenceDeployment:
    return load(f"""
apiVersion: bireme.dev/v1alpha1
kind: InferenceDeployment
metadata: {{name: demo}}
spec:
  model: {{source: {{path: /models/m}}, revision: one}}
  parallelism: {{pipeline: 2}}
  placement: {{scheduler: {scheduler}, topology: {topology}}}
""")


class Server(Kube):
    """An API server with PodGroups, or without."""

    def __init__(self, serves: bool = True) -> None:
        self.groups: list[dict[str, Any]] = []
        self.there = serves
        self.keeps_topology = True
        self.namespace_is_gone = False
        self.asked = 0

    async def serves(self, resource: Resource) -> bool:
        return self.there

    async def list(self, resource: Resource, namespace: str | None, selector: str = "") -> dict[str, Any]:
        self.asked += 1
        if not self.there:
            raise NotFound("the server could not find the requested resource")
        return {"items": self.groups}

    async def create(self, manifest: dict[str, Any], **_: Any) -> dict[str, Any]:
        if not self.there or self.namespace_is_gone:
            raise NotFound("not found")
        left = {} if self.keeps_topology else {"schedulingConstraints": None}
        return manifest | {"spec": manifest["spec"] | left}


def pod_group(condition: dict[str, str] | None = None, group: int = 0, incarnation: int = 1) -> dict[str, Any]:
    labels = {Label.GROUP_INDEX.value: str(group), Label.INCARNATION.value: str(incarnation)}
    meta = {"name": f"demo-{group}-{incarnation}", "uid": "u", "labels": labels}
    return {"metadata": meta, "status": {"conditions": [condition] if condition else []}}


def half_placed(seconds: float, group: int = 0) -> Memory:
    return Memory({group: replace(GroupMemory.new(group, NOW), halfway_since=NOW - seconds)})


def pods(incarnation: int = 1) -> list[PodView]:
    made = [PodView(f"p{stage}", 0, stage, incarnation, "r", "m", Phase.PENDING, "") for stage in (0, 1)]
    return [replace(made[0], node="a"), replace(made[1], unplaced=True)]


async def look(server: Server, memory: Memory, views: list[PodView] | None = None, **spec: str) -> Gangless | None:
    gangs = Gangs(PodGroups(server, OWNER, sees_nodes=True))
    return await gangs.look(asked(**spec), memory, pods() if views is None else views, NOW)


async def test_a_scheduler_that_refuses_a_stage_beside_one_with_a_node_without_a_word_ignores_gangs() -> None:
    server = Server()
    server.groups = [pod_group()]
    found = await look(server, half_placed(HEEDED_S))
    assert found is not None
    assert "PodGroup demo-0-1" in found.why
    assert "--feature-gates=GenericWorkload=true" in found.why


async def test_one_that_keeps_gangs_has_spoken_of_the_group_whatever_it_said() -> None:
    server = Server()
    for status in ("True", "False"):
        server.groups = [pod_group({"type": "PodGroupInitiallyScheduled", "status": status})]
        assert await look(server, half_placed(3600)) is None


async def test_what_says_nothing_yet_is_given_time() -> None:
    server = Server()
    server.groups = [pod_group()]
    assert await look(server, half_placed(HEEDED_S - 1)) is None
    assert await look(server, Memory({0: GroupMemory.new(0, NOW)})) is None
    assert server.asked == 0


async def test_a_group_is_judged_by_the_making_whose_stage_has_a_node_and_by_no_other() -> None:
    server = Server()
    server.groups = [pod_group(incarnation=2), pod_group({"type": "PodGroupInitiallyScheduled", "status": "True"})]
    assert await look(server, half_placed(HEEDED_S)) is None, "the second has just been made"
    assert await look(server, half_placed(HEEDED_S), pods(incarnation=2)) is not None
    server.groups = []
    assert await look(server, half_placed(HEEDED_S)) is None, "somebody has deleted it: then nobody can tell"


async def test_what_came_out_is_remembered_by_the_next_operator_too_until_it_is_asked_anew() -> None:
    server = Server()
    server.groups = [pod_group()]
    known = await look(server, half_placed(HEEDED_S))
    kept = read_memory(write_memory(Memory(gangless=known)))
    server.groups = []
    assert await look(server, kept, []) == known
    assert await look(server, kept, [], topology="[{key: rack}]") is None
    assert await look(server, kept, [], scheduler="Gates") is None, "there is nothing to be said"


async def test_a_server_that_has_no_pod_groups_has_no_gangs_and_one_without_the_namespace_may_have() -> None:
    pod = CreatePod("demo-0-0-x", 0, 0, 1, "r", "m", {}, "")
    groups = PodGroups(Server(serves=False), OWNER, sees_nodes=False)
    with pytest.raises(NoGangs, match=r"serves no PodGroups.*--all-namespaces"):
        await groups.create([(pod, asked().spec)], dry_run=True)
    await groups.sweep([])
    server = Server()
    server.namespace_is_gone = True
    with pytest.raises(NotFound):
        await PodGroups(server, OWNER, sees_nodes=True).create([(pod, asked().spec)])


async def test_a_server_that_drops_the_topology_of_a_gang_keeps_none_of_those_that_are_asked() -> None:
    pod = CreatePod("demo-0-0-x", 0, 0, 1, "r", "m", {}, "")
    server = Server()
    server.keeps_topology = False
    groups = PodGroups(server, OWNER, sees_nodes=True)
    await groups.create([(pod, asked().spec)])
    with pytest.raises(NoGangs, match="TopologyAwareWorkloadScheduling=true"):
        await groups.create([(pod, asked("[{key: rack}]").spec)])


async def test_what_a_try_found_out_counts_at_the_next_look_and_is_told_once() -> None:
    gangs = Gangs(PodGroups(Server(), OWNER, sees_nodes=True), missing=no_gangs("none", sees_nodes=True))
    found = await gangs.look(asked(), Memory(), [], NOW)
    assert found == Gangless(gang_key(asked()), no_gangs("none", sees_nodes=True))
    assert await gangs.look(asked(), Memory(), [], NOW) is None
