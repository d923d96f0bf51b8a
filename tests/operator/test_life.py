"""The life of a deployment on a real control plane, with stages whose serving is not the point."""

from typing import Any

import pytest

from bireme.api.types import MAX_NAME_LENGTH
from bireme.names import Label
from bireme_operator.kube.resources import (
    APPS,
    CONFIG_MAPS,
    POLICIES,
    REVISIONS,
    ROLE_BINDINGS,
    ROLES,
    SECRETS,
    SERVICE_ACCOUNTS,
    SERVICES,
    Resource,
)
from tests.controlplane.cluster import ControlPlane
from tests.controlplane.polling import eventually
from tests.operator.conftest import StartOperator
from tests.operator.deployments import Deployments, label
from tests.operator.stage_kubelet import StageKubelet
from tests.operator.test_rollouts import whole


def test_a_deployment_becomes_ready_group_by_group(
    deployments: Deployments, kubelet: StageKubelet, start_operator: StartOperator
) -> None:
    start_operator()
    deployments.create(replicas=2, stages=2)
    status = deployments.await_ready()
    assert (status["replicas"], status["readyReplicas"]) == (2, 2)
    assert [group["state"] for group in status["groups"]] == ["Serving", "Serving"]
    assert sorted(deployments.living()) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert {one["type"] for one in status["conditions"]} == {
        "Ready", "Available", "Progressing", "Scheduled", "Reconciling", "Stalled",
    }  # fmt: skip
    assert len(kubelet.started) == 4


def test_more_groups_come_and_the_least_useful_goes(
    deployments: Deployments, kubelet: StageKubelet, start_operator: StartOperator
) -> None:
    start_operator()
    deployments.create(replicas=1, stages=2)
    deployments.await_condition("Ready")
    first = deployments.uids()
    deployments.change(replicas=3)
    deployments.await_condition("Ready")
    grown = deployments.uids()
    assert len(grown) == 6
    assert first.items() <= grown.items(), "the group that served was left alone"
    kubelet.load(deployments.living()[0, 0], 1)
    deployments.change(replicas=2)
    eventually(lambda: len(deployments.pods()) == 4)
    deployments.await_condition("Ready")
    assert (2, 0) not in deployments.uids(), "the youngest idle group goes before a busy one"


def test_a_lost_stage_alone_is_made_anew_once_under_a_higher_incarnation(
    deployments: Deployments, kubelet: StageKubelet, start_operator: StartOperator
) -> None:
    start_operator()
    deployments.create(replicas=2, stages=2)
    deployments.await_condition("Ready")
    before = deployments.living()
    deployments.delete_pod(before[0, 1])
    eventually(
        lambda: deployments.uids().get((0, 1), before[0, 1]["metadata"]["uid"]) != before[0, 1]["metadata"]["uid"]
    )
    deployments.await_condition("Ready")
    after = deployments.living()
    changed = {place for place in before if before[place]["metadata"]["uid"] != after[place]["metadata"]["uid"]}
    assert changed == {(0, 1)}
    assert label(after[0, 1], Label.INCARNATION) == "2"
    eventually(lambda: len(kubelet.started) == 5)


def test_a_change_of_the_pods_replaces_one_group_after_the_other(
    deployments: Deployments, kubelet: StageKubelet, start_operator: StartOperator
) -> None:
    start_operator()
    deployments.create(replicas=2, stages=1)
    deployments.await_condition("Ready")
    before = deployments.uids()
    deployments.change(engine={"maxRunningRequests": 3})

    def rolled() -> bool:
        assert whole(deployments, 1) >= 1, "one group at a time"
        status = deployments.get()["status"]
        return bool(status["updatedReplicas"] == 2 and status["observedGeneration"] == 2)

    eventually(rolled)
    deployments.await_condition("Ready")
    after = deployments.uids()
    assert len(after) == 2
    assert not set(before.values()) & set(after.values())


def test_a_pod_that_ended_for_good_is_replaced_and_its_words_are_told(
    deployments: Deployments, kubelet: StageKubelet, start_operator: StartOperator
) -> None:
    start_operator()
    deployments.create(replicas=1, stages=1)
    deployments.await_condition("Ready")
    kubelet.crash(deployments.living()[0, 0], 65, "log\nbireme-worker: shard 3 is truncated", 1, waiting=True)
    stalled = deployments.await_condition("Stalled")
    assert stalled["reason"] == "BadCheckpoint"
    assert "shard 3 is truncated" in stalled["message"]
    assert deployments.get()["status"]["groups"][0]["state"] == "Failed"


def test_a_template_that_the_server_refuses_is_told_in_its_words_and_changes_nothing(
    deployments: Deployments, kubelet: StageKubelet, start_operator: StartOperator
) -> None:
    start_operator()
    deployments.create(replicas=1, stages=1)
    deployments.await_condition("Ready")
    before = deployments.uids()
    deployments.change(template={"spec": {"nodeSelektor": {"gpu": "h100"}}})
    stalled = deployments.await_condition("Stalled")
    assert stalled["reason"] == "InvalidTemplate"
    assert 'unknown field "spec.nodeSelektor"' in stalled["message"]
    assert deployments.uids() == before, "what serves goes on"
    deployments.change(template={"spec": {"nodeSelektor": None, "priority": "high"}})
    eventually(lambda: "priority" in deployments.condition("Stalled").get("message", ""))
    deployments.change(template=None)
    deployments.await_condition("Ready")
    assert deployments.uids() == before


def test_what_is_lost_while_the_server_refuses_what_is_wanted_comes_back_as_it_was(
    deployments: Deployments, kubelet: StageKubelet, start_operator: StartOperator
) -> None:
    start_operator()
    deployments.create(replicas=1, stages=2)
    deployments.await_condition("Ready")
    before = deployments.living()
    deployments.change(router={"template": {"spec": {"nodeSelektor": {"gpu": "h100"}}}})
    assert "nodeSelektor: field not declared in schema" in deployments.await_condition("Stalled")["message"]
    deployments.change(router=None, template={"spec": {"containers": [{"name": "worker", "env": {"A": "b"}}]}})
    eventually(lambda: "Container.spec.containers.env" in deployments.condition("Stalled").get("message", ""))
    deployments.delete_pod(before[0, 1])
    eventually(lambda: deployments.incarnation(0, 1) == "2")
    eventually(lambda: deployments.get()["status"]["readyReplicas"] == 1)
    after = deployments.living()
    assert label(after[0, 1], Label.REVISION) == label(before[0, 1], Label.REVISION)
    assert after[0, 0]["metadata"]["uid"] == before[0, 0]["metadata"]["uid"]
    assert deployments.condition("Stalled")["reason"] == "InvalidTemplate"
    deployments.change(template=None)
    deployments.await_condition("Ready")
    assert deployments.uids() == {place: pod["metadata"]["uid"] for place, pod in after.items()}


def test_a_template_may_not_take_what_is_bireme_s(deployments: Deployments, start_operator: StartOperator) -> None:
    start_operator()
    deployments.create(template={"spec": {"hostname": "mine"}})
    stalled = deployments.await_condition("Stalled")
    assert "spec.template.spec.hostname" in stalled["message"]
    assert deployments.pods() == []


def test_the_longest_name_has_room_for_its_pods(
    deployments: Deployments, kubelet: StageKubelet, start_operator: StartOperator
) -> None:
    name = "n" * MAX_NAME_LENGTH
    start_operator()
    deployments.create(name, replicas=1, stages=2)
    deployments.await_condition("Ready", name=name)
    assert len(deployments.living(name)) == 2


def test_t14_a_quota_for_one_and_a_half_groups_makes_one_whole_group(
    deployments: Deployments, kubelet: StageKubelet, start_operator: StartOperator, control_plane: ControlPlane
) -> None:
    quota = {"metadata": {"name": "three"}, "spec": {"hard": {"pods": "3"}}}
    url = f"/api/v1/namespaces/{deployments.namespace}/resourcequotas"
    control_plane.api.post(url, json=quota).raise_for_status()
    eventually(lambda: control_plane.api.get(f"{url}/three").json().get("status", {}).get("used"))
    start_operator()
    deployments.create(replicas=2, stages=2, router=None)

    def told() -> dict[str, Any] | None:
        groups = deployments.get().get("status", {}).get("groups", [])
        return next((group for group in groups if group["reason"] == "Quota"), None)

    assert "exceeded quota" in eventually(told)["message"]
    eventually(lambda: deployments.get()["status"]["readyReplicas"] == 1)
    # Half of the other one is made and taken back again, each time that it is tried.
    eventually(lambda: len({group for group, _ in deployments.living()}) == 1)
    assert deployments.await_condition("Scheduled", "False")["reason"] == "Quota"
    assert any("exceeded quota" in event for event in deployments.await_event("GroupWaits", "Quota: "))
    control_plane.api.delete(f"{url}/three").raise_for_status()
    deployments.await_condition("Ready")


def test_what_a_deleted_deployment_had_is_collected_while_no_operator_runs(
    deployments: Deployments, kubelet: StageKubelet, start_operator: StartOperator, control_plane: ControlPlane
) -> None:
    operator = start_operator()
    deployments.create(replicas=1, stages=2)
    deployments.await_condition("Ready")
    assert operator.stop() == 0
    deployments.delete()
    base = f"/api/v1/namespaces/{deployments.namespace}"
    apps = f"/apis/apps/v1/namespaces/{deployments.namespace}/deployments"
    query = {"labelSelector": f"{Label.DEPLOYMENT}=demo"}
    urls = (f"{base}/pods", f"{base}/services", f"{base}/secrets", f"{base}/configmaps", apps)
    eventually(lambda: not any(control_plane.api.get(url, params=query).json()["items"] for url in urls))


def test_what_a_deleted_deployment_left_behind_hinders_no_other_of_its_name(
    deployments: Deployments, kubelet: StageKubelet, start_operator: StartOperator, control_plane: ControlPlane
) -> None:
    start_operator()
    deployments.create(replicas=1, stages=2)
    deployments.await_condition("Ready")
    left = set(deployments.uids().values())
    url = f"{deployments.url}/demo"
    control_plane.api.request("DELETE", url, json={"propagationPolicy": "Orphan"}).raise_for_status()
    eventually(lambda: control_plane.api.get(url).status_code == 404)
    deployments.create(replicas=1, stages=2)
    deployments.await_condition("Ready")
    assert left < {pod["metadata"]["uid"] for pod in deployments.pods()}
    assert len(deployments.pods()) == 4
    uid = deployments.get()["metadata"]["uid"]
    eventually(lambda: owners(deployments, SERVICES) == owners(deployments, REVISIONS) == {uid})


def owners(deployments: Deployments, resource: Resource) -> set[str]:
    """The uids of what owns the objects of a kind that carry the deployment's name."""
    query = {"labelSelector": f"{Label.DEPLOYMENT}=demo"}
    found = deployments.plane.api.get(resource.path(deployments.namespace), params=query).raise_for_status().json()
    return {owner["uid"] for one in found["items"] for owner in one["metadata"].get("ownerReferences", [{"uid": ""}])}


CHILDREN = (SERVICES, SECRETS, CONFIG_MAPS, SERVICE_ACCOUNTS, ROLES, ROLE_BINDINGS, APPS, POLICIES, REVISIONS)


@pytest.mark.usefixtures("control_plane")  # which collects what the old object had
def test_t6_a_new_object_of_the_same_name_gets_children_of_its_own(
    deployments: Deployments, kubelet: StageKubelet, start_operator: StartOperator
) -> None:
    start_operator()
    old = deployments.create(replicas=1, stages=2)["metadata"]["uid"]
    deployments.await_condition("Ready")
    before = deployments.uids()
    for resource in CHILDREN:
        eventually(lambda resource=resource: owners(deployments, resource) == {old})  # type: ignore[misc]
    deployments.delete()
    uid = deployments.create(replicas=1, stages=2)["metadata"]["uid"]
    deployments.await_condition("Ready")
    for resource in CHILDREN:
        eventually(lambda resource=resource: owners(deployments, resource) == {uid})  # type: ignore[misc]
    eventually(lambda: len(deployments.pods()) == 2)
    assert not before.items() & deployments.uids().items()
    assert {pod["metadata"]["ownerReferences"][0]["uid"] for pod in deployments.pods()} == {uid}
