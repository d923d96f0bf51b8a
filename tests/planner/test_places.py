"""Where a whole group may go: room, taints, selectors, one domain, none that another group has; or the reason why not."""

from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bireme_operator.plan.places import HOSTNAME, Needs, NodeView, NoRoom, Search, Topology, find
from bireme_operator.plan.quantities import amounts, thousandths

RACK, ZONE = "topology.kubernetes.io/rack", "topology.kubernetes.io/zone"
GPUS = Needs(amounts({"nvidia.com/gpu": "8"}))


def node(name: str, gpus: int = 8, rack: str = "a", zone: str = "z", **more: Any) -> NodeView:
    labels = {HOSTNAME: name, RACK: rack, ZONE: zone, **more.pop("labels", {})}
    return NodeView(name, labels, amounts({"nvidia.com/gpu": gpus, "pods": 110}), **more)


def place(nodes: list[NodeView], count: int = 2, needs: Needs = GPUS, **more: Any) -> list[str] | NoRoom:
    return find(Search(count, needs, **more), nodes)


def test_a_group_goes_where_all_of_it_fits() -> None:
    assert place([node("n1"), node("n2", 4), node("n3")]) == ["n1", "n3"]
    assert place([node("n1", 16), node("n2")]) == ["n1", "n1"], "as few nodes as can be"


def test_a_group_that_does_not_fit_is_told_how_much_is_missing() -> None:
    found = place([node("n1"), node("n2", 4)], topology=Topology(required=(RACK,)))
    assert isinstance(found, NoRoom)
    assert found.message == (
        f"no room in one domain of {RACK} for 2 more stages of nvidia.com/gpu 8 each; the most, for 1, has a "
        "(2 nodes suit)"
    )


def test_a_required_level_holds_a_group_together_and_the_smallest_domain_is_taken() -> None:
    nodes = [node("a1"), node("b1", rack="b"), node("b2", rack="b"), *[node(f"c{n}", rack="c") for n in range(4)]]
    assert place(nodes, topology=Topology(required=(RACK,))) == ["b1", "b2"]


def test_a_preferred_level_is_given_up_where_it_can_t_be_had() -> None:
    nodes = [node("a1"), node("b1", rack="b")]
    assert place(nodes, topology=Topology(required=(ZONE,), preferred=(RACK,))) == ["a1", "b1"]
    assert place([*nodes, node("b2", rack="b")], topology=Topology((ZONE,), (RACK,))) == ["b1", "b2"]


def test_a_domain_of_another_group_is_left_to_it() -> None:
    nodes = [node("a1"), node("a2"), node("b1", rack="b"), node("b2", rack="b")]
    topology = Topology((RACK,), exclusive=True)
    assert place(nodes, topology=topology, taken=frozenset({"a"})) == ["b1", "b2"]
    assert isinstance(place(nodes, topology=topology, taken=frozenset({"a", "b"})), NoRoom)


def test_a_stage_that_is_made_anew_stays_with_its_peers() -> None:
    nodes = [node("a1", rack="a"), node("b1", rack="b")]
    beside = (node("b9", 0, rack="b"),)
    assert place(nodes, 1, topology=Topology((RACK,)), beside=beside) == ["b1"]


def test_nodes_that_no_other_group_has_are_taken_first() -> None:
    nodes = [node("n1", 16), node("n2", 16), node("n3", 8)]
    assert place(nodes, others={"n1": 1}) == ["n2", "n2"]
    assert place(nodes, 1, others={"n1": 1, "n2": 1}) == ["n3"], "one death should not take two groups"
    assert place(nodes, others={"n1": 1, "n2": 2}) == ["n1", "n1"], "the group itself stays on as few as can be"
    assert place(nodes, 5, others={"n1": 1}) == ["n1", "n1", "n2", "n2", "n3"], "a wish, where there is room"


def test_a_larger_domain_is_taken_where_nothing_is_shared() -> None:
    nodes = [node("a1"), node("a2"), node("b1"), node("b2"), node("c1", rack="b"), node("c2", rack="b")]
    nodes += [node("c3", rack="b"), node("c4", 0, rack="b")]
    near = Topology(required=(RACK,))
    assert place(nodes, topology=near) == ["c1", "c2"], "the smallest"
    assert place(nodes, topology=near, others={"c1": 1, "c2": 1, "c3": 1}) == ["a1", "a2"]
    assert place(nodes, topology=near, others={"c4": 3}) == ["c1", "c2"], "it is not on that node"


def test_of_equal_domains_the_one_with_the_fewest_other_groups_is_taken() -> None:
    nodes = [node(name, 16, rack=name[0]) for name in ("a1", "a2", "b1", "b2")]
    assert place(nodes, topology=Topology((RACK,)), others={"a2": 1}) == ["b1", "b1"]


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.sampled_from("ab")), min_size=1, max_size=6),
    st.integers(1, 4),
    st.booleans(),
)
def test_to_be_apart_from_other_groups_costs_no_place_and_no_node_more(
    cluster: list[tuple[int, int, str]], count: int, near: bool
) -> None:
    nodes = [node(f"n{number}", 8 * slots, rack=rack) for number, (slots, _, rack) in enumerate(cluster)]
    others = {f"n{number}": groups for number, (_, groups, _) in enumerate(cluster) if groups}
    topology = Topology((RACK,) if near else ())
    found = place(nodes, count, topology=topology, others=others)
    assert isinstance(found, NoRoom) == isinstance(place(nodes, count, topology=topology), NoRoom)
    if isinstance(found, NoRoom):
        return
    racks = {one.labels[RACK]: [each for each in nodes if each.labels[RACK] == one.labels[RACK]] for one in nodes}
    domains = list(racks.values()) if near else [nodes]
    home = next(domain for domain in domains if found[0] in {one.name for one in domain})
    assert set(found) <= {one.name for one in home}
    alone = place(home, count)
    assert not isinstance(alone, NoRoom)
    assert len(set(found)) == len(set(alone)), "the group is as near together as there can be"
    if any(others.get(name) for name in found):
        assert not any(_apart(domain, count, others) for domain in domains)


def _apart(domain: list[NodeView], count: int, others: dict[str, int]) -> bool:
    """Whether as few nodes as can be hold the group in this domain and no other group."""
    least = place(domain, count)
    if isinstance(least, NoRoom):
        return False
    free = [one for one in domain if not others.get(one.name)]
    chosen = combinations(free, len(set(least)))
    return any(sum(one.slots(GPUS) for one in some) >= count for some in chosen)


@pytest.mark.parametrize(
    ("needs", "fits"),
    [
        (Needs(), True),
        (Needs(selector={"gpu": "h100"}), True),
        (Needs(selector={"gpu": "a100"}), False),
        (Needs(terms=({"matchExpressions": [{"key": "gpu", "operator": "In", "values": ["h100"]}]},)), True),
        (Needs(terms=({"matchExpressions": [{"key": "gpu", "operator": "DoesNotExist"}]},)), False),
        (Needs(terms=({"matchExpressions": [{"key": "size", "operator": "Gt", "values": ["4"]}]},)), True),
        (Needs(terms=({"matchExpressions": [{"key": "size", "operator": "Lt", "values": ["4"]}]},)), False),
        (Needs(terms=({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["other"]}]},)), False),
    ],
)
def test_selectors_and_affinity_are_kept(needs: Needs, fits: bool) -> None:
    found = place([node("n1", labels={"gpu": "h100", "size": "8"})], 1, needs)
    assert (found == ["n1"]) == fits


@pytest.mark.parametrize(
    ("tolerations", "fits"),
    [
        ((), False),
        (({"key": "gpu", "operator": "Exists"},), True),
        (({"operator": "Exists"},), True),
        (({"key": "gpu", "value": "yes", "effect": "NoSchedule"},), True),
        (({"key": "gpu", "value": "no"},), False),
        (({"key": "gpu", "value": "yes", "effect": "NoExecute"},), False),
    ],
)
def test_a_tainted_node_takes_only_what_tolerates_it(tolerations: tuple[dict[str, str], ...], fits: bool) -> None:
    tainted = node("n1", taints=({"key": "gpu", "value": "yes", "effect": "NoSchedule"},))
    assert (place([tainted], 1, Needs(tolerations=tolerations)) == ["n1"]) == fits


def test_a_node_has_no_more_room_than_pods() -> None:
    full = NodeView("n1", {HOSTNAME: "n1"}, amounts({"pods": 1}))
    assert place([full], 1, Needs()) == ["n1"]
    assert isinstance(place([full], 2, Needs()), NoRoom)


@pytest.mark.parametrize(
    ("quantity", "value"),
    [
        ("1", 1000),
        ("100m", 100),
        ("2Gi", 2**31 * 1000),
        ("1Ki", 1_024_000),
        ("1.5", 1500),
        ("1e3", 10**6),
        (8, 8000),
        ("?", 0),
    ],
)
def test_quantities_are_counted_exactly(quantity: object, value: int) -> None:
    assert thousandths(quantity) == value
