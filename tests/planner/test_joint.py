"""Everything at once: random clusters, specs, faults of pods, nodes and the operator, in random order.

After every visit: no incarnation is given away twice, no two live leaders, epochs only rise, nobody's capacity is taken
below what the spec allows. When the faults are over: all that is wanted serves or says why not, nothing is done any
more, and half a gang holds no devices.
"""

from dataclasses import replace
from itertools import zip_longest

from hypothesis import given, settings
from hypothesis import strategies as st

from bireme.names import GroupState
from bireme_operator.plan.desired import Desired, RolloutPolicy
from bireme_operator.plan.places import Topology
from bireme_operator.plan.providers import Gang
from tests.planner.cluster import RACK, Cluster
from tests.planner.test_convergence import FAULTS, GOOD_LUCK, LIMITS, LUCK, check, strike
from tests.planner.world import Luck, wanted

NODE_FAULTS = st.one_of(
    st.tuples(
        st.sampled_from(["fail", "return", "cordon", "uncordon", "silence", "hear"]), st.integers(0, 5), st.just(0)
    ),
    st.tuples(st.just("foreign"), st.integers(0, 5), st.integers(0, 4)),
)
SPECS = st.builds(
    lambda replicas, stages, gang, whole, budget, limits, exclusive: _spec(
        wanted(replicas, stages), gang, limits, whole=whole, budget=budget, exclusive=exclusive
    ),
    st.integers(1, 3),
    st.integers(1, 3),
    st.sampled_from([Gang.NONE, Gang.GATES]),
    st.booleans(),
    st.sampled_from([2, 1000]),
    LIMITS,
    st.booleans(),
)


def _spec(base: Desired, gang: Gang, limits: tuple[int, int], *, whole: bool, budget: int, exclusive: bool) -> Desired:
    return replace(
        base,
        gang=gang,
        spares=0 if whole or gang is Gang.GATES else 1,
        topology=Topology((RACK,), exclusive=exclusive) if gang is Gang.GATES else Topology(),
        rollout=RolloutPolicy(*limits),
        recovery=replace(base.recovery, whole=whole, budget=budget),
    )


def hit(cluster: Cluster, fault: tuple[str, int, int]) -> None:
    kind, number, detail = fault
    node = f"n{number % len(cluster.slots)}"
    if kind == "fail":
        cluster.fail(node)
    elif kind == "return":
        cluster.give_back(node)
    elif kind == "cordon":
        cluster.cordoned.add(node)
    elif kind == "uncordon":
        cluster.cordoned.discard(node)
    elif kind == "silence":
        cluster.silent.add(node)
    elif kind == "hear":
        cluster.silent.discard(node)
    elif kind == "foreign":
        cluster.foreign[node] = detail
    else:
        strike(cluster, fault)


def visit(cluster: Cluster, luck: Luck) -> None:
    """One visit, and what must hold of it."""
    leaders = cluster.observe().leaders
    drained = {index for index, group in cluster.memory.groups.items() if group.draining}
    # One that has lost a process is made anew whole where that is the mode, whatever its leader says.
    struck = {pod.group for pod in cluster.pods.values() if pod.deaths and cluster.desired.recovery.whole}
    serving = {group for group, view in leaders.items() if view.document.state == "Serving"} - drained - struck
    result = cluster.visit(luck)
    check(cluster)
    gone = {index for index, group in result.memory.groups.items() if group.draining}
    # Where a node is to be emptied and there is no room, the budget for that counts as well.
    emptied = cluster.desired.unavailable_groups if cluster.cordoned else 0
    least = cluster.desired.replicas - max(cluster.desired.rollout.unavailable, emptied)
    if gone & serving:
        assert len(serving - gone) >= min(len(serving), least), "capacity is taken below what is allowed"
    for epochs in cluster.epochs.values():
        assert epochs == sorted(epochs), "an older epoch served after a newer one"


def heal(cluster: Cluster) -> None:
    """The faults are over, and there is room for everything."""
    for node in list(cluster.dead):
        cluster.give_back(node)
    cluster.cordoned.clear()
    cluster.silent.clear()
    cluster.foreign.clear()
    cluster.mute.clear()
    cluster.requests.clear()
    for number in range(6):
        cluster.add_node(50, f"large{number}")
    cluster.change(rollout=replace(cluster.desired.rollout, partition=0))


@settings(max_examples=150, deadline=None)
@given(
    spec=SPECS,
    sizes=st.lists(st.integers(0, 4), min_size=1, max_size=5),
    racks=st.integers(1, 3),
    faults=st.lists(st.one_of(FAULTS, NODE_FAULTS), max_size=25),
    lucks=st.lists(LUCK, max_size=25),
)
def test_whatever_happens_in_whatever_cluster_it_ends_well(
    spec: Desired, sizes: list[int], racks: int, faults: list[tuple[str, int, int]], lucks: list[Luck]
) -> None:
    cluster = Cluster(spec)
    for index, size in enumerate(sizes):
        cluster.add_node(size, f"r{index % racks}")
    for fault, luck in zip_longest(faults, lucks):
        hit(cluster, fault or ("wait", 31, 0))
        visit(cluster, luck or GOOD_LUCK)
    heal(cluster)
    last = cluster.settle()
    check(cluster)
    assert len(last.status.groups) == cluster.desired.replicas
    assert {group.state for group in last.status.groups} <= {GroupState.SERVING, GroupState.FAILED}
    assert all(group.message for group in last.status.groups if group.state is GroupState.FAILED)
    assert not cluster.halves(), "half a gang holds devices for good"
    assert not cluster.step().actions, "what is settled stays as it is"
