"""What a node says is read as the wish that its pods leave, or as nothing of the kind; whose budgets stand in the way."""

from typing import Any

import pytest

from bireme.api import parse
from bireme_operator.plan.actions import CreatePod
from bireme_operator.plan.places import selects
from bireme_operator.render.budgets import pod_labels
from bireme_operator.render.owned import Owner
from bireme_operator.render.pods import render_pod
from bireme_operator.shell.leaving import STAY, signs_of
from bireme_operator.shell.store import Store
from tests.api.objects import with_fields
from tests.operator.test_records import KEY, pod


def node(*taints: dict[str, Any], cordoned: bool = False, name: str = "n1") -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {"unschedulable": cordoned, "taints": list(taints)}}


def taint(key: str, effect: str = "NoSchedule", **more: str) -> dict[str, Any]:
    return {"key": key, "effect": effect, **more}


ALL = [{"operator": "Exists"}]
OURS = [{"key": "team", "operator": "Equal", "value": "a", "effect": "NoSchedule"}]
CASES: dict[str, tuple[dict[str, Any], list[dict[str, Any]], bool]] = {
    "an ordinary node": (node(), [], False),
    "a cordon": (node(cordoned=True), [], True),
    "a cordon that everything is said to bear": (node(cordoned=True), ALL, True),
    "a spot instance that is reclaimed": (node(taint("aws-node-termination-handler/spot-itn")), [], True),
    "an autoscaler that wants the node away": (node(taint("ToBeDeletedByClusterAutoscaler", value="1")), [], True),
    "a taint that ends pods": (node(taint("example.com/broken", "NoExecute")), [], True),
    "a taint that is only a preference": (node(taint("example.com/old", "PreferNoSchedule")), [], False),
    "a taint that the pod bears": (node(taint("team", value="a")), OURS, False),
    "a taint whose value the pod does not bear": (node(taint("team", value="b")), OURS, True),
    "a node that is not heard": (node(taint("node.kubernetes.io/unreachable", "NoExecute")), [], False),
    "a node short of memory": (node(taint("node.kubernetes.io/memory-pressure")), [], False),
}


BUDGETS: dict[str, tuple[dict[str, Any] | None, bool]] = {
    "all pods": ({}, True),
    "none": (None, False),
    "the deployment": ({"matchLabels": {"bireme.dev/deployment": "demo"}}, True),
    "another deployment": ({"matchLabels": {"bireme.dev/deployment": "other"}}, False),
    "a label of the template": ({"matchLabels": {"app": "chat"}}, True),
    "leaders": ({"matchExpressions": [{"key": "bireme.dev/role", "operator": "In", "values": ["leader"]}]}, True),
    "the router": ({"matchLabels": {"bireme.dev/role": "router"}}, False),
    "what is no worker": (
        {"matchExpressions": [{"key": "app.kubernetes.io/component", "operator": "NotIn", "values": ["worker"]}]},
        False,
    ),
}


@pytest.mark.parametrize("what", BUDGETS)
def test_a_budget_of_somebody_else_conflicts_if_it_chooses_a_stage(what: str) -> None:
    selector, conflicts = BUDGETS[what]
    pods = pod_labels(Owner("demo", "default", "uid"), 3, {"app": "chat"})
    assert any(selects(selector, pod) for pod in pods) is conflicts


def test_the_labels_by_which_a_stage_is_chosen_are_those_of_its_pod() -> None:
    owner = Owner("demo", "default", "uid")
    spec = parse(with_fields(spec__template={"metadata": {"labels": {"app": "chat"}}})).spec
    for stage, expected in enumerate(pod_labels(owner, 3, {"app": "chat"})):
        made = CreatePod("p", 3, stage, 1, "r", "m", {})
        labels = render_pod(made, owner, spec, image="i", token_secret="s")["metadata"]["labels"]
        assert expected.items() <= labels.items()


@pytest.mark.parametrize("case", CASES)
def test_a_cordon_or_a_taint_that_is_not_borne_asks_a_pod_to_leave(case: str) -> None:
    body, tolerations, leaves = CASES[case]
    assert signs_of(body).concern(tolerations) is leaves


def test_a_deployment_is_looked_at_when_one_of_its_nodes_changes_its_mind() -> None:
    store = Store(lambda: 100.0)
    store.see_pod(pod(1))
    assert store.see_node(node()) == []
    assert store.see_node(node(cordoned=True)) == [KEY]
    assert store.see_node(node(cordoned=True)) == []
    assert store.leaving(KEY, "owner") == {"demo-1-0-x"}
    assert store.see_node(node(cordoned=True, name="n2")) == []
    assert store.see_node(node()) == [KEY]
    assert store.leaving(KEY, "owner") == frozenset()
    assert signs_of(node()) == STAY
