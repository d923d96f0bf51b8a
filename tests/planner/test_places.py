"""Where a whole group may go: room, taints, selectors, one domain, none that another group has; or the reason why not."""

from typing import Any

import pytest

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
