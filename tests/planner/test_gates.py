"""Scheduling gates: whole groups are let go together, and half a gang never holds devices for long."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from bireme.names import GroupState, Reason
from bireme_operator.plan.actions import CreatePod, DeletePod, LiftGate
from bireme_operator.plan.gates import STUCK_S
from bireme_operator.plan.observed import Observed, Phase, PodView
from bireme_operator.plan.places import HOSTNAME, Needs, NodeView, Topology
from bireme_operator.plan.plan import Plan, plan
from bireme_operator.plan.providers import Gang
from bireme_operator.plan.quantities import amounts, total
from tests.planner.cluster import Cluster
from tests.planner.world import World, wanted

GPU, RACK = "nvidia.com/gpu", "topology.kubernetes.io/rack"
NEEDS = Needs(amounts({GPU: 8}))


class Nodes:
    """A cluster with a scheduler that binds what is let go, if its node has room; others take room as they like."""

    def __init__(self, world: World, gpus: dict[str, int], racks: int = 1) -> None:
        self.world = world
        self.gpus = dict(gpus)
        self.racks = {name: f"r{index % racks}" for index, name in enumerate(sorted(gpus))}
        self.foreign = dict.fromkeys(gpus, 0)

    def free(self, node: str) -> int:
        used = sum(pod.node == node for pod in self.world.pods.values())
        return self.gpus[node] - self.foreign[node] - 8 * used

    def view(self) -> tuple[NodeView, ...]:
        aimed = [pod.aim for pod in self.world.pods.values() if pod.aim and not pod.node and not pod.gated]
        less = {name: {GPU: -8000 * aimed.count(name)} for name in self.gpus}
        return tuple(
            NodeView(
                name,
                {HOSTNAME: name, RACK: self.racks[name]},
                total([{GPU: 1000 * self.free(name)}, less[name], {"pods": 99000}]),
            )
            for name in sorted(self.gpus)
        )

    def observe(self) -> Observed:
        return replace(self.world.observe(), nodes=self.view(), needs=NEEDS)

    def step(self) -> Plan:
        world = self.world
        result = plan(world.desired, self.observe(), world.memory, world.now)
        world.memory = result.memory
        for action in result.actions:
            if isinstance(action, LiftGate):
                world.pods[action.pod] = replace(world.pods[action.pod], gated=False, aim=action.hostname)
                continue
            world.apply(action)
            if isinstance(action, CreatePod):
                gated = replace(world.pods[action.name], phase=Phase.PENDING, gated=True)
                world.pods[action.name] = gated
        return result

    def schedule(self) -> None:
        for name, pod in sorted(self.world.pods.items()):
            if not pod.gated and not pod.node and self.free(pod.aim) >= 8:
                running = {"phase": Phase.RUNNING, "node": pod.aim, "unplaced": False, "started_at": self.world.now}
                self.world.pods[name] = replace(pod, **running)  # type: ignore[arg-type]
            elif not pod.gated and not pod.node:
                self.world.pods[name] = replace(pod, unplaced=True)

    def pods(self, group: int) -> list[PodView]:
        return [pod for pod in self.world.pods.values() if pod.group == group]

    def halves(self) -> set[int]:
        """Groups of which some stages hold devices, although others have no node."""
        groups = {pod.group for pod in self.world.pods.values()}
        return {group for group in groups if len({pod.node != "" for pod in self.pods(group)}) == 2}


def gated(replicas: int, stages: int = 2, topology: Topology | None = None) -> World:
    return World(wanted(replicas=replicas, stages=stages, gang=Gang.GATES, topology=topology or Topology((RACK,))))


def test_a_group_is_let_go_whole_and_one_without_room_waits_whole() -> None:
    nodes = Nodes(gated(2), {"a": 8, "b": 8, "c": 8})
    nodes.step()
    lifted = [action for action in nodes.step().actions if isinstance(action, LiftGate)]
    assert [(lift.group, lift.node) for lift in lifted] == [(0, "a"), (0, "b")]
    nodes.schedule()
    status = nodes.step().status
    assert not nodes.halves()
    assert (status.groups[1].state, status.groups[1].reason) == (GroupState.PENDING, Reason.NO_CAPACITY)
    assert "room for 1" in status.groups[1].message or "for 1," in status.groups[1].message
    nodes.gpus["c"] = 16
    nodes.step()
    nodes.schedule()
    nodes.step()
    assert nodes.step().status.ready_replicas == 2


def test_a_place_that_was_taken_meanwhile_is_given_back_and_looked_for_anew() -> None:
    nodes = Nodes(gated(1), {"a": 8, "b": 8})
    nodes.step()
    nodes.step()
    nodes.foreign["b"] = 8
    nodes.schedule()
    nodes.step()
    assert nodes.halves() == {0}
    nodes.world.advance(STUCK_S)
    taken_back = [action for action in nodes.step().actions if isinstance(action, DeletePod)]
    assert len(taken_back) == 2
    nodes.gpus["a"] = 16
    for _ in range(4):
        nodes.step()
        nodes.schedule()
    assert nodes.step().status.ready_replicas == 1
    assert nodes.world.memory.groups[0].restarts == 0, "nobody has died"


def test_what_a_busy_scheduler_has_not_come_to_yet_is_waited_for() -> None:
    nodes = Nodes(gated(1), {"a": 8, "b": 8})
    nodes.step()
    nodes.step()
    nodes.world.advance(10 * STUCK_S)
    assert not nodes.step().actions
    nodes.schedule()
    assert nodes.step().status.ready_replicas == 1


def test_what_is_left_of_a_group_that_never_served_does_not_wait_with_devices() -> None:
    nodes = Nodes(gated(2, stages=3), {"a": 8, "b": 16, "c": 16})
    nodes.step()
    nodes.step()
    nodes.schedule()
    nodes.world.vanish(nodes.world.pod(0, 0).name)
    nodes.step()
    nodes.schedule()
    assert nodes.halves() == {0}, "the other group has got the place of the lost stage"
    nodes.step()
    nodes.world.advance(STUCK_S)
    for _ in range(4):
        nodes.step()
        nodes.schedule()
    assert nodes.halves() == set()
    assert nodes.step().status.ready_replicas == 1


def test_groups_that_are_placed_at_once_share_no_node_where_there_is_room_apart() -> None:
    nodes = Nodes(gated(2, stages=1, topology=Topology()), {"a": 24, "b": 16, "c": 16})
    for _ in range(3):
        nodes.step()
        nodes.schedule()
    assert [pod.node for group in (0, 1) for pod in nodes.pods(group)] == ["a", "b"]
    nodes.world.vanish(nodes.world.pod(0, 0).name)
    nodes.world.vanish(nodes.world.pod(1, 0).name)
    nodes.gpus = {"a": 32, "b": 8, "c": 8}
    for _ in range(4):
        nodes.step()
        nodes.schedule()
    assert len({pod.node for group in (0, 1) for pod in nodes.pods(group)}) == 2, "the room on a would do for both"
    assert nodes.step().status.ready_replicas == 2


def test_an_operator_that_sees_no_nodes_says_so() -> None:
    world = gated(1)
    nodes = Nodes(world, {"a": 16})
    nodes.step()
    blind = replace(nodes.observe(), nodes=None)
    group = plan(world.desired, blind, world.memory, world.now).status.groups[0]
    assert group.reason == Reason.NO_CAPACITY
    assert "--all-namespaces" in group.message


CHANGES = st.one_of(
    st.tuples(st.just("foreign"), st.integers(0, 5), st.sampled_from([0, 4, 8, 16])),
    st.tuples(st.just("scale"), st.integers(0, 4), st.just(0)),
    st.tuples(st.just("vanish"), st.integers(0, 12), st.just(0)),
    st.tuples(st.just("roll"), st.integers(1, 3), st.just(0)),
    st.tuples(st.just("pass"), st.just(0), st.just(0)),
    st.tuples(st.just("wait"), st.sampled_from([1, 31]), st.just(0)),
)


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.sampled_from([0, 8, 16]), min_size=2, max_size=6),
    racks=st.integers(1, 3),
    stages=st.integers(1, 3),
    exclusive=st.booleans(),
    changes=st.lists(CHANGES, max_size=15),
)
def test_in_any_cluster_half_a_gang_is_given_back_and_what_fits_is_placed(
    sizes: list[int], racks: int, stages: int, exclusive: bool, changes: list[tuple[str, int, int]]
) -> None:
    world = gated(2, stages, Topology((RACK,), exclusive=exclusive))
    nodes = Nodes(world, {f"n{index}": size for index, size in enumerate(sizes)}, racks)
    for kind, number, detail in changes:
        if kind == "foreign" and f"n{number}" in nodes.foreign:
            nodes.foreign[f"n{number}"] = detail
        elif kind == "scale":
            world.change(replicas=number)
        elif kind == "vanish" and world.pods:
            world.vanish(sorted(world.pods)[number % len(world.pods)])
        elif kind == "roll":
            world.change(revision=f"rev{number}")
        elif kind == "wait":
            world.advance(number)
        nodes.step()
        nodes.schedule()
        check(nodes)
    for _ in range(60):
        nodes.step()
        nodes.schedule()
        check(nodes)
        world.advance(10)
    nodes.step()
    fresh = {index for index in nodes.halves() if not world.memory.groups[index].served}
    assert not fresh, "half a gang holds devices for good"


def check(nodes: Nodes) -> None:
    topology = nodes.world.desired.topology
    homes: dict[int, set[str]] = {}
    for pod in nodes.world.pods.values():
        if pod.node:
            homes.setdefault(pod.group, set()).add(nodes.racks[pod.node])
    assert all(len(racks) == 1 for racks in homes.values()), "a group is in one domain"
    if topology.exclusive:
        taken = [rack for racks in homes.values() for rack in racks]
        assert len(taken) == len(set(taken)), "a domain has one group"


def test_a_stage_comes_back_to_the_rack_of_one_on_a_cordoned_node() -> None:
    """The operator looks for room on nodes that take pods; the cordoned one is in its rack all the same."""
    cluster = Cluster(wanted(replicas=1, gang=Gang.GATES, topology=Topology((RACK,))))
    for number in range(4):
        cluster.add_node(1, f"r{number // 2}")
    for _ in range(10):
        cluster.step()
        cluster.advance(2)
    first, second = (cluster.pod(0, stage).node for stage in (0, 1))
    cluster.foreign["n2"] = 1  # no successor finds room for two
    cluster.cordoned.add(first)
    cluster.fail(second)
    for _ in range(60):
        cluster.step()
        cluster.advance(2)
    living = [pod for pod in cluster.pods.values() if pod.group == 0 and not pod.deleting]
    assert {cluster.racks[pod.node] for pod in living if pod.node} == {cluster.racks[first]}
