"""The objects beside the pods: what somebody deletes or changes of them comes back, what is somebody else's stays his."""

import time
from itertools import combinations
from typing import Any

import msgspec
import pytest

from bireme.api.document import load
from bireme.names import Label, Reason
from bireme_operator.kube.resources import resource_of
from bireme_operator.render.owned import Owner, metadata
from bireme_operator.shell.belongings import WATCHED, Belongings, Place
from bireme_operator.shell.children import HEALED_MOST
from tests.controlplane.cluster import ControlPlane
from tests.controlplane.polling import eventually
from tests.operator.conftest import StartOperator
from tests.operator.deployments import MERGE, Deployments
from tests.operator.stage_kubelet import StageKubelet
from tests.operator.test_render import PLAIN, rendered

KEY = ("ns", "demo")
PLACE = ("Deployment", "ns", "demo-router")
MANIFEST = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": metadata(Owner("demo", "ns", "owner"), "demo-router", "router"),
    "spec": {"replicas": 1},
}
ENCODED = msgspec.json.encode(MANIFEST)


def body(version: int, uid: str = "one", replicas: int = 1, **more: Any) -> dict[str, Any]:
    """The object as the server has it."""
    meta = {**MANIFEST["metadata"], "uid": uid, "resourceVersion": str(version)}  # type: ignore[dict-item]
    return {**MANIFEST, "metadata": meta, "spec": {"replicas": replicas, "paused": False}, **more}


@pytest.fixture
def belongings() -> Belongings:
    """One object is known as it was applied, at version 5."""
    made = Belongings()
    made.applied(PLACE, ENCODED, body(5))
    return made


def test_our_own_writes_and_what_came_before_them_ask_for_nothing(belongings: Belongings) -> None:
    assert [belongings.see("Deployment", body(version, replicas=6 - version)) for version in (4, 5)] == [None, None]
    assert belongings.is_as_applied(PLACE, ENCODED)
    assert belongings.uid(PLACE, "owner") == "one"


def test_what_others_write_beside_what_we_wrote_asks_for_nothing(belongings: Belongings) -> None:
    for version in range(6, 20):
        assert belongings.see("Deployment", body(version, status={"readyReplicas": version})) is None
    assert belongings.is_as_applied(PLACE, ENCODED)
    assert belongings.changes(KEY) == 0


def test_a_change_of_what_we_wrote_is_to_be_applied_again(belongings: Belongings) -> None:
    assert belongings.see("Deployment", body(6, replicas=0)) == KEY
    assert not belongings.is_as_applied(PLACE, ENCODED)
    assert belongings.uid(PLACE, "owner") == "one"
    assert belongings.changes(KEY) == 1
    belongings.applied(PLACE, ENCODED, body(7))
    assert belongings.see("Deployment", body(7)) is None
    assert belongings.is_as_applied(PLACE, ENCODED)


def test_a_change_that_is_seen_before_our_own_answer_is_not_overlooked(belongings: Belongings) -> None:
    assert belongings.see("Deployment", body(8, replicas=0)) == KEY
    belongings.applied(PLACE, ENCODED, body(7))
    assert not belongings.is_as_applied(PLACE, ENCODED)


def test_what_is_deleted_is_ours_no_more_and_the_end_of_one_before_it_is_nothing(belongings: Belongings) -> None:
    assert belongings.see("Deployment", body(9, uid="zero"), gone=True) is None
    assert belongings.is_as_applied(PLACE, ENCODED)
    assert belongings.see("Deployment", body(9), gone=True) == KEY
    assert not belongings.is_as_applied(PLACE, ENCODED)
    assert belongings.uid(PLACE, "owner") == ""


def test_what_is_deleted_before_our_own_answer_has_come_is_applied_again(belongings: Belongings) -> None:
    assert belongings.see("Deployment", body(9), gone=True) == KEY
    belongings.applied(PLACE, ENCODED, body(8))
    assert not belongings.is_as_applied(PLACE, ENCODED)
    belongings.see("Deployment", body(11, uid="two", replicas=0))
    belongings.applied(PLACE, ENCODED, body(10, uid="three"))
    assert not belongings.is_as_applied(PLACE, ENCODED), "another has come since"


def test_whoever_changes_a_label_wakes_the_owner_all_the_same(belongings: Belongings) -> None:
    changed = body(6)
    changed["metadata"]["labels"] = changed["metadata"]["labels"] | {str(Label.DEPLOYMENT): "other"}
    assert belongings.see("Deployment", changed) == KEY


def test_what_belongs_to_another_is_not_taken_for_ours(belongings: Belongings) -> None:
    assert belongings.uid(PLACE, "another") == ""
    assert belongings.see("Deployment", body(6, uid="two", metadata=foreign("two", 6))) == KEY
    assert belongings.uid(PLACE, "owner") == ""


def foreign(uid: str, version: int) -> dict[str, Any]:
    labels = {str(Label.DEPLOYMENT): "demo"}
    return {"name": "demo-router", "namespace": "ns", "labels": labels, "uid": uid, "resourceVersion": str(version)}


def test_no_two_deployments_need_the_same_name() -> None:
    names = ["a", "a-router", "a-stages", "a-routes", "a-0", "a-0-1", "a-tokens", "a-spares"]
    objects = {name: places(PLAIN.replace("demo", name)) for name in names}
    assert all(objects[one].isdisjoint(other) for one, other in ((a, objects[b]) for a, b in combinations(names, 2)))


def places(document: str) -> set[Place]:
    found = rendered(load(document))
    return {(one["kind"], one["metadata"]["namespace"], one["metadata"]["name"]) for one in found}


def test_what_somebody_deletes_or_changes_is_as_it_was_long_before_all_is_applied_anew(
    crd: ControlPlane, deployments: Deployments, kubelet: StageKubelet, start_operator: StartOperator
) -> None:
    # One after the other: a resync a minute for each of them would be more than the test's time.
    start_operator()
    deployments.create(replicas=1, stages=1)
    deployments.await_condition("Ready")
    objects = owned(crd, deployments)
    assert {one["kind"] for one in objects} == {kind.kind for kind in WATCHED}
    for before in objects:
        url = url_of(before)
        crd.api.delete(url).raise_for_status()
        made = eventually(lambda url=url, uid=before["metadata"]["uid"]: anew(crd, url, uid))  # type: ignore[misc]
        assert made["metadata"]["labels"] == before["metadata"]["labels"]
        crd.api.patch(url, json={"metadata": {"labels": {str(Label.ROLE): "x"}}}, headers=MERGE).raise_for_status()
        role = before["metadata"]["labels"][Label.ROLE]
        eventually(lambda url=url, role=role: role_of(crd, url) == role)  # type: ignore[misc]


def owned(plane: ControlPlane, deployments: Deployments) -> list[dict[str, Any]]:
    """The objects of the kinds that are watched."""
    found = []
    for kind in WATCHED:
        query = {"labelSelector": f"{Label.DEPLOYMENT}=demo"}
        items = plane.api.get(kind.path(deployments.namespace), params=query).raise_for_status().json()["items"]
        found += [{**one, "kind": kind.kind, "apiVersion": kind.api_version} for one in items]
    return found


def url_of(one: dict[str, Any]) -> str:
    return resource_of(one).path(one["metadata"]["namespace"], one["metadata"]["name"])


def anew(plane: ControlPlane, url: str, uid: str) -> dict[str, Any] | None:
    """The object at ``url`` if it is another than that with ``uid``."""
    found = plane.api.get(url)
    return dict(found.json()) if found.status_code == 200 and found.json()["metadata"]["uid"] != uid else None


def role_of(plane: ControlPlane, url: str) -> str:
    return str(plane.api.get(url).raise_for_status().json()["metadata"]["labels"][Label.ROLE])


def test_an_object_of_somebody_else_s_is_left_alone_and_told_until_it_goes_out_of_the_way(
    crd: ControlPlane, deployments: Deployments, kubelet: StageKubelet, start_operator: StartOperator
) -> None:
    services = f"/api/v1/namespaces/{deployments.namespace}/services"
    theirs = make(crd, services, "demo-router", spec={"ports": [{"port": 80}]})
    start_operator()
    deployments.create(replicas=1, stages=1)
    stalled = deployments.await_condition("Stalled")
    assert stalled["reason"] == Reason.OBJECT_IN_THE_WAY
    assert stalled["message"].startswith("Service demo-router is in the way")
    assert crd.api.get(f"{services}/demo-stages").status_code == 200, "it keeps no other from being there"
    assert crd.api.get(f"{services}/demo-router").json() == theirs
    crd.api.delete(f"{services}/demo-router").raise_for_status()
    uid = deployments.get()["metadata"]["uid"]
    deployments.await_condition("Ready")
    assert owner_of(crd, f"{services}/demo-router") == uid


def test_groups_are_kept_while_an_object_of_somebody_else_s_is_in_the_way(
    crd: ControlPlane, deployments: Deployments, kubelet: StageKubelet, start_operator: StartOperator
) -> None:
    operator = start_operator()
    other = deployments.create("other", replicas=0)["metadata"]
    deployments.create(replicas=1, stages=2)
    deployments.await_condition("Ready")
    lost = deployments.living()[0, 1]
    assert operator.stop() == 0
    maps = f"/api/v1/namespaces/{deployments.namespace}/configmaps"
    crd.api.delete(f"{maps}/demo-routes").raise_for_status()
    holder = {"apiVersion": "bireme.dev/v1alpha1", "kind": "InferenceDeployment", "controller": True}
    holder |= {"name": "other", "uid": other["uid"]}
    theirs = make(crd, maps, "demo-routes", {"ownerReferences": [holder]}, data={"mine": "1"})
    deployments.delete_pod(lost)
    start_operator("another")
    eventually(lambda: deployments.condition("Stalled").get("reason") == Reason.OBJECT_IN_THE_WAY)
    told = deployments.condition("Stalled")["message"]
    assert "ConfigMap demo-routes is in the way: it belongs to InferenceDeployment other" in told
    eventually(lambda: deployments.incarnation(0, 1) == "2")
    eventually(lambda: deployments.get()["status"]["readyReplicas"] == 1)
    assert crd.api.get(f"{maps}/demo-routes").json() == theirs
    crd.api.delete(f"{maps}/demo-routes").raise_for_status()
    deployments.await_condition("Ready")
    eventually(lambda: owner_of(crd, f"{maps}/demo-routes") == deployments.get()["metadata"]["uid"])


def test_what_an_earlier_deployment_of_the_name_has_left_is_waited_for_and_is_nobody_s_fault(
    crd: ControlPlane, deployments: Deployments, kubelet: StageKubelet, start_operator: StartOperator
) -> None:
    services = f"/api/v1/namespaces/{deployments.namespace}/services"
    before = {"apiVersion": "bireme.dev/v1alpha1", "kind": "InferenceDeployment", "controller": True}
    before |= {"name": "demo", "uid": "8f1d9d4c-2f0b-4a53-9d53-0c9d5f0f4a11"}
    held = {"ownerReferences": [before], "finalizers": ["example.com/held"]}
    make(crd, services, "demo-router", held, spec={"ports": [{"port": 80}]})
    crd.api.delete(f"{services}/demo-router").raise_for_status()  # as the collector would, sooner or later
    start_operator()
    deployments.create(replicas=1, stages=1)
    eventually(lambda: deployments.get().get("status", {}).get("readyReplicas") == 1)
    assert deployments.condition("Stalled")["status"] == "False"
    uid = deployments.get()["metadata"]["uid"]
    assert owner_of(crd, f"{services}/demo-router") == before["uid"]
    loose = {"metadata": {"finalizers": None}}
    crd.api.patch(f"{services}/demo-router", json=loose, headers=MERGE).raise_for_status()
    eventually(lambda: owner_of(crd, f"{services}/demo-router") == uid)


def test_whoever_undoes_what_is_applied_again_and_again_is_not_fought_at_full_speed(
    crd: ControlPlane, deployments: Deployments, kubelet: StageKubelet, start_operator: StartOperator
) -> None:
    start_operator()
    deployments.create(replicas=1, stages=1)
    deployments.await_condition("Ready")
    url = f"/api/v1/namespaces/{deployments.namespace}/services/demo-router"
    role, rounds, ends = role_of(crd, url), 0, time.monotonic() + 15
    while time.monotonic() < ends and rounds <= 2 * HEALED_MOST:
        if role_of(crd, url) == role:
            rounds += 1
            crd.api.patch(url, json={"metadata": {"labels": {str(Label.ROLE): "x"}}}, headers=MERGE).raise_for_status()
    assert rounds <= HEALED_MOST + 1
    eventually(lambda: role_of(crd, url) == role)


def make(plane: ControlPlane, url: str, name: str, more: dict[str, Any] | None = None, **content: Any) -> Any:
    made = plane.api.post(url, json={"metadata": {"name": name, **(more or {})}, **content})
    return made.raise_for_status().json()


def owner_of(plane: ControlPlane, url: str) -> str:
    found = plane.api.get(url)
    return str(found.json()["metadata"]["ownerReferences"][0]["uid"]) if found.status_code == 200 else ""
