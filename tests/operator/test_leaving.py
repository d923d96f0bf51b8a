"""What a node says is read as the wish that its pods leave, or as nothing of the kind; whose budgets stand in the way."""

from typing import Any

import pytest

from bireme.api import parse
from bireme_operator.plan.actions import CreatePod
from bireme_operator.plan.observed import Leave
from bireme_operator.plan.places import NodeView, selects
from bireme_operator.render.avoid import avoided_by, avoiding
from bireme_operator.render.budgets import pod_labels
from bireme_operator.render.owned import Owner
from bireme_operator.render.pods import render_pod
from bireme_operator.shell.leaving import STAY, signs_of
from bireme_operator.shell.places import needs_of
from bireme_operator.shell.signals import Watched
from bireme_operator.shell.store import Store
from tests.api.objects import with_fields
from tests.operator.test_records import KEY, pod

RECLAIMED = "cloud.google.com/impending-node-termination"


def node(*taints: dict[str, Any], cordoned: bool = False, name: str = "n1", **conditions: str) -> dict[str, Any]:
    spec = {"unschedulable": cordoned, "taints": list(taints)}
    said = [{"type": kind, "status": status} for kind, status in conditions.items()]
    return {"metadata": {"name": name}, "spec": spec, "status": {"conditions": said}}


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
    "a spot instance that is reclaimed, whatever is borne": (node(taint(RECLAIMED, "PreferNoSchedule")), ALL, True),
    "a broken device": (node(XIDErrors="True"), ALL, True),
    "a device that is whole": (node(XIDErrors="False", AcceleratedHardwareReady="True"), [], False),
    "hardware that is not ready": (node(AcceleratedHardwareReady="False"), [], True),
    "a condition of another kind": (node(KernelDeadlock="True"), [], False),
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
        labels = render_pod(made, owner, spec, token_secret="s")["metadata"]["labels"]
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
    assert store.leaving(KEY, "owner").keys() == {"demo-1-0-x"}
    assert store.see_node(node(cordoned=True, name="n2")) == []
    assert store.see_node(node()) == [KEY]
    assert not store.leaving(KEY, "owner")
    assert signs_of(node()) == STAY


def broken(pod: dict[str, Any]) -> dict[str, Any]:
    device = {"name": "nvidia.com/gpu", "resources": [{"resourceID": "GPU-7", "health": "Unhealthy"}]}
    pod["status"] |= {"containerStatuses": [{"name": "worker", "allocatedResourcesStatus": [device]}]}
    return pod


def marked(pod: dict[str, Any], reason: str) -> dict[str, Any]:
    said = {"type": "DisruptionTarget", "status": "True", "reason": reason, "message": "in words"}
    pod["status"] |= {"conditions": [said]}
    return pod


def test_a_pod_says_itself_that_its_device_is_broken_or_that_it_is_to_end() -> None:
    now = 100.0
    store = Store(lambda: now)
    store.see_pod(broken(pod(1)))
    assert store.leaving(KEY, "owner")["demo-1-0-x"] == Leave("device GPU-7 of nvidia.com/gpu is unhealthy")
    store.see_pod(marked(pod(2), "DeletionByDeviceTaintManager"))
    assert not store.leaving(KEY, "owner"), "whoever says so deletes it in a moment"
    now += 2.0
    assert store.leaving(KEY, "owner")["demo-1-0-x"] == Leave("DeletionByDeviceTaintManager: in words", 130.0)


def test_the_time_that_is_left_counts_from_the_sign_that_leaves_the_least() -> None:
    now = 100.0
    store = Store(lambda: now)
    store.see_pod(pod(1))
    store.see_node(node(cordoned=True))
    assert store.leaving(KEY, "owner")["demo-1-0-x"] == Leave()
    now = 500.0
    store.see_node(node(taint(RECLAIMED), taint("example.com/old"), cordoned=True))
    assert store.leaving(KEY, "owner")["demo-1-0-x"] == Leave(f"taint {RECLAIMED}", 530.0)
    now = 510.0
    store.see_node(node(taint(RECLAIMED), cordoned=True))
    assert store.leaving(KEY, "owner")["demo-1-0-x"].by == 530.0


def test_what_a_cluster_has_of_its_own_is_named_on_the_command_line() -> None:
    watched = Watched.of(["example.com/gone:45", "example.com/soon"], ["LinkUp=False", "Fire:5"])
    said = node(taint("example.com/gone"), taint("example.com/soon"), LinkUp="False", Fire="True")
    assert [(one.what, one.notice_s) for one in watched.on(said)] == [
        ("taint example.com/gone", 45.0),
        ("taint example.com/soon", 0.0),
        ("condition LinkUp is False", 0.0),
        ("condition Fire is True", 5.0),
    ]
    assert not [*watched.on(node(LinkUp="True", Fire="False"))]


@pytest.mark.parametrize(("taints", "conditions"), [(["a:b"], []), ([":5"], []), ([], ["Up=No"]), ([], ["=False"])])
def test_what_is_written_otherwise_is_refused(taints: list[str], conditions: list[str]) -> None:
    with pytest.raises(ValueError, match="write"):
        Watched.of(taints, conditions)


def test_new_pods_are_kept_off_nodes_to_which_the_scheduler_would_send_them_in_vain() -> None:
    store = Store(lambda: 100.0)
    store.see_node(node(cordoned=True, name="cordoned"))
    store.see_node(node(XIDErrors="True", name="broken"))
    store.see_node(node(taint("team", value="b"), name="another-team-s"))
    assert store.lures(KEY, []) == {"broken"}
    assert store.lures(KEY, ALL) == {"broken", "cordoned"}
    term = {"matchExpressions": [{"key": "gpu", "operator": "Exists"}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}
    for spec in ({}, {"affinity": affinity}):
        kept = avoiding({"spec": spec}, store.lures(KEY, ALL))
        assert avoided_by(kept) == {"broken", "cordoned"}
        needs = needs_of({"spec": {**kept["spec"], "containers": []}})
        free = [NodeView(name, {"gpu": "h100"}, {"pods": 9000}) for name in ("broken", "cordoned", "whole")]
        assert [one.name for one in free if one.slots(needs) > 0] == ["whole"]
    assert avoiding({"spec": {}}, frozenset()) == {"spec": {}}


def test_a_pod_that_waits_is_stranded_when_the_node_that_it_was_kept_off_is_open_again() -> None:
    store = Store(lambda: 100.0)
    store.see_node(node(cordoned=True, name="n9"))
    waiting = pod(1)
    waiting["spec"] = {key: value for key, value in waiting["spec"].items() if key != "nodeName"}
    store.see_pod(avoiding(waiting, ["n9"]))
    assert not store.stranded(KEY, "owner")
    assert store.see_node(node(name="n9")) == [KEY]
    assert store.stranded(KEY, "owner") == {"demo-1-0-x"}
