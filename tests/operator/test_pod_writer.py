"""What is asked of pods is done beside the visits: seen as done while it is under way, and said when it was not."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from bireme.api.deployment import Spec
from bireme.api.document import load
from bireme_operator.kube.client import Kube
from bireme_operator.kube.errors import AlreadyExists, QuotaExceeded, Unavailable
from bireme_operator.plan.actions import CreatePod, DeletePod, LiftGate
from bireme_operator.plan.desired import Desired
from bireme_operator.plan.memory import GroupMemory
from bireme_operator.render.owned import Owner
from bireme_operator.shell.errands import Errands
from bireme_operator.shell.pods import QUOTA_RETRY_S, PodWriter
from bireme_operator.shell.store import Store

OWNER = Owner("demo", "default", "owner-uid")
DEMO = load("""
apiVersion: bireme.dev/v1alpha1
kind: InferenceDeployment
metadata: {name: demo}
spec:
  model: {source: {path: /models/m}, revision: one}
  parallelism: {pipeline: 2}
  placement: {scheduler: Gates}
""")


class Server(Kube):
    """An API server that answers when ``door`` is open. For ``quick`` pods it always is.

    ``refuses`` has what it says to the making of a pod.
    """

    def __init__(self) -> None:
        self.door = asyncio.Event()
        self.quick: set[str] = set()
        self.refuses: dict[str, Exception] = {}
        self.made: list[str] = []
        self.ended: list[str] = []
        self.lifted: dict[str, Any] = {}
        self.bodies: dict[str, dict[str, Any]] = {}
        self.version = 100

    async def create(self, manifest: dict[str, Any], **_: Any) -> dict[str, Any]:
        name = manifest["metadata"]["name"]
        if name not in self.quick:
            await self.door.wait()
        if name in self.refuses:
            raise self.refuses[name]
        self.made.append(name)
        return self._keep(manifest, uid=f"uid-{name}")

    async def patch_parts(self, _resource: Any, _namespace: str, name: str, change: dict[str, Any]) -> dict[str, Any]:
        await self.door.wait()
        self.lifted[name] = change
        body = self.bodies[name]
        left = {"schedulingGates": [], "nodeSelector": change["spec"]["nodeSelector"]}
        return self._keep(body | {"spec": body["spec"] | left}, uid=body["metadata"]["uid"])

    async def delete(self, resource: Any, namespace: str, name: str, **_: Any) -> dict[str, Any]:
        await self.door.wait()
        self.ended.append(name)
        return {}

    def _keep(self, body: dict[str, Any], uid: str) -> dict[str, Any]:
        self.version += 1
        meta = body["metadata"] | {"uid": uid, "resourceVersion": str(self.version)}
        kept = self.bodies[meta["name"]] = body | {"metadata": meta}
        return kept


class Bench:
    """A writer, the store that it fills, and what has been planned for it."""

    def __init__(self) -> None:
        self.server = Server()
        self.store = Store(lambda: 1000.0)
        self.visits = 0
        self.errands = Errands(self._ring)
        spec_of: Callable[[str, Spec], Spec] = lambda _, spec: spec  # noqa: E731
        self.pods = PodWriter(self.server, self.store, OWNER, spec_of, self.errands)
        self.desired = Desired.of(DEMO, OWNER.uid)

    def _ring(self) -> None:
        self.visits += 1

    def stage(self, group: int, stage: int, incarnation: int = 1) -> CreatePod:
        name = self.desired.pod_name(group, stage, incarnation)
        identity = self.desired.pod_environment(group, stage, incarnation)
        return CreatePod(name, group, stage, incarnation, self.desired.revision, "one", identity)

    def create(self, *made: CreatePod, now: float = 0.0) -> None:
        self.pods.create(made, DEMO.spec, "tokens", now)

    def wished(self) -> set[str]:
        return {view.name for view in self.pods.as_wished(self.store.views(("default", "demo"), OWNER.uid))}

    async def done(self) -> None:
        self.server.door.set()
        while self.errands._tasks:
            await asyncio.sleep(0)
        self.server.door.clear()


@pytest.fixture
async def bench() -> Bench:
    return Bench()


async def test_a_pod_that_is_being_made_counts_as_there_and_is_not_made_again(bench: Bench) -> None:
    pair = bench.stage(0, 0), bench.stage(0, 1)
    bench.create(*pair)
    assert bench.wished() == bench.pods.unsure == {one.name for one in pair}
    bench.create(*pair)
    await bench.done()
    assert bench.server.made == [one.name for one in pair]
    assert bench.wished() == {one.name for one in pair}
    assert not bench.pods.unsure
    assert bench.visits == 1


async def test_a_group_that_is_half_made_shows_no_gate_that_could_be_lifted(bench: Bench) -> None:
    first = bench.stage(0, 0).name
    bench.server.quick = {first}
    bench.create(bench.stage(0, 0), bench.stage(0, 1))
    while not bench.server.made:
        await asyncio.sleep(0)
    bench.store.see_pod(bench.server.bodies[first])
    views = bench.pods.as_wished(bench.store.views(("default", "demo"), OWNER.uid))
    assert [view.gated for view in views] == [False, False]
    await bench.done()
    assert all(view.gated for view in bench.pods.as_wished(bench.store.views(("default", "demo"), OWNER.uid)))


async def test_what_could_not_be_made_is_said_once_and_fails_the_next_visit(bench: Bench) -> None:
    made = bench.stage(0, 0)
    bench.server.refuses[made.name] = Unavailable("HTTP 503")
    bench.create(made)
    await bench.done()
    assert bench.wished() == set()
    assert bench.pods.unsure == {made.name}
    assert bench.pods.take_unmade() == {made.name}
    assert bench.pods.take_unmade() == frozenset()
    with pytest.raises(Unavailable):
        bench.errands.check()


async def test_half_a_group_without_quota_is_taken_back_and_tried_again_after_a_while(bench: Bench) -> None:
    pair = bench.stage(0, 0), bench.stage(0, 1)
    bench.server.refuses[pair[1].name] = QuotaExceeded("exceeded quota: small")
    bench.create(*pair)
    await bench.done()
    assert bench.server.ended == [pair[0].name]
    assert bench.pods.without_quota == {0: "exceeded quota: small"}
    assert bench.pods.take_unmade() == {one.name for one in pair}
    bench.create(*pair, now=QUOTA_RETRY_S - 1)
    assert bench.pods.take_unmade() == {one.name for one in pair}, "it is too soon"
    bench.server.refuses.clear()
    bench.create(*pair, now=QUOTA_RETRY_S)
    await bench.done()
    assert not bench.pods.without_quota


async def test_without_quota_for_a_new_group_what_makes_another_whole_is_tried_at_once_and_first(bench: Bench) -> None:
    full = QuotaExceeded("exceeded quota: small")
    whole = bench.stage(1, 0), bench.stage(1, 1)
    bench.create(*whole)
    await bench.done()
    new, lost = bench.stage(0, 0, incarnation=3), bench.stage(1, 1, incarnation=2)
    bench.server.refuses = {new.name: full, lost.name: full}
    bench.create(new)
    await bench.done()
    bench.create(new, lost, now=1.0)
    assert bench.pods.take_unmade() == {new.name}
    await bench.done()
    assert bench.pods.without_quota.keys() == {0, 1}
    assert bench.pods.take_unmade() == {lost.name}
    bench.create(new, lost, now=2.0)
    assert bench.pods.take_unmade() == {new.name, lost.name}, "each of them has been refused a moment ago"
    bench.server.refuses.clear()
    bench.create(new, lost, now=60.0)
    await bench.done()
    assert bench.server.made[2:] == [lost.name, new.name]


async def test_groups_without_quota_are_tried_again_for_as_long_as_they_are_wanted(bench: Bench) -> None:
    made = bench.stage(1, 0)
    bench.server.refuses[made.name] = QuotaExceeded("exceeded quota: small")
    bench.create(made)
    await bench.done()
    groups = {index: GroupMemory.new(index, 0.0) for index in (0, 1)}
    assert bench.pods.quota_due(groups, now=1.0) == QUOTA_RETRY_S
    assert bench.pods.quota_due(groups, now=QUOTA_RETRY_S) is None, "whoever is paused asks for nothing, and may wait"
    assert bench.pods.without_quota
    without = [{0: groups[0]}, groups | {1: replace(groups[1], down_since=None)}]
    words = bench.pods.without_quota
    for left in without:  # it is not wanted any more, or it serves
        bench.pods.without_quota = dict(words)
        assert bench.pods.quota_due(left, now=1.0) is None
        assert not bench.pods.without_quota


async def test_a_pod_that_is_there_already_makes_us_look_again(bench: Bench) -> None:
    made = bench.stage(0, 0)
    bench.server.refuses[made.name] = AlreadyExists("pods already exists")
    bench.create(made)
    await bench.done()
    assert bench.pods.astonished


async def test_what_replaces_a_lost_part_does_not_wait_behind_a_flood_of_new_groups(bench: Bench) -> None:
    bench.create(*(bench.stage(group, 0) for group in range(100)))
    lost = bench.stage(200, 0, incarnation=2)
    bench.create(lost)
    await asyncio.sleep(0)
    bench.server.door.set()
    while lost.name not in bench.server.made:
        await asyncio.sleep(0)
    assert len(bench.server.made) < 50
    await bench.done()
    assert len(bench.server.made) == 101


async def test_a_gate_is_lifted_by_its_name_alone_and_counts_as_lifted_at_once(bench: Bench) -> None:
    made = bench.stage(0, 0)
    bench.create(made)
    await bench.done()
    assert bench.pods.lift(LiftGate(made.name, 0, "n3", "host-3"))
    assert not bench.pods.lift(LiftGate(made.name, 0, "n3", "host-3")), "once"
    (view,) = bench.pods.as_wished(bench.store.views(("default", "demo"), OWNER.uid))
    assert (view.gated, view.aim) == (False, "host-3")
    await bench.done()
    change = bench.server.lifted[made.name]["spec"]
    assert change["schedulingGates"] == [{"$patch": "delete", "name": "bireme.dev/gang"}]
    (view,) = bench.pods.as_wished(bench.store.views(("default", "demo"), OWNER.uid))
    assert (view.gated, view.aim) == (False, "host-3")


async def test_an_end_that_is_under_way_is_not_asked_for_again_and_puts_its_group_in_doubt_once(bench: Bench) -> None:
    made = bench.stage(4, 0)
    bench.create(made)
    await bench.done()
    ended = DeletePod(made.name, 1.0, "it is lost")
    assert bench.pods.doubtful([ended, bench.stage(9, 0)], {4}) == {4}, "a group that has just begun has no pods"
    bench.pods.end(ended)
    assert bench.pods.to_begin([ended]) == []
    assert bench.pods.doubtful([ended], {4}) == set()
    bench.pods.end(ended)
    await bench.done()
    assert bench.server.ended == [made.name]


async def test_a_list_that_is_older_than_a_pod_does_not_make_it_gone(bench: Bench) -> None:
    made = bench.stage(0, 0)
    bench.create(made)
    await bench.done()
    key = ("default", "demo")
    bench.store.replace_pods(key, [], version=100)
    assert bench.wished() == {made.name}
    bench.store.replace_pods(key, [], version=200, groups=[1])
    assert bench.wished() == {made.name}, "the list was of another group"
    bench.store.replace_pods(key, [], version=200, groups=[0])
    assert bench.wished() == set()
