"""T12: the operator of the release before hands over to this one, CRD included, and no pod has another uid."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from bireme.api.crd import COMMITTED
from bireme.names import Annotation, Label
from bireme.wire import WIRE_VERSION
from bireme_operator.plan.rendering import Rendering
from bireme_operator.render.owned import Owner
from bireme_operator.render.revisions import read_revision
from tests.controlplane.cluster import ControlPlane
from tests.controlplane.polling import eventually
from tests.operator.before import ROOT, operator_before, replace_crd
from tests.operator.conftest import StartOperator
from tests.operator.deployments import Deployments
from tests.operator.process import OperatorProcess
from tests.operator.stage_kubelet import StageKubelet
from tests.operator.stored import NAMES, restore, stored

NEXT_IMAGE = "worker-of-the-next-release"


def image(pod: dict[str, Any]) -> str:
    return str(pod["spec"]["containers"][0]["image"])


@pytest.fixture
def old(crd: ControlPlane, tmp_path: Path, start_operator: StartOperator) -> Iterator[OperatorProcess]:
    """The operator of the release before."""
    with operator_before(crd, tmp_path, lambda: start_operator("old")) as operator:
        yield operator


def without_resume(crd: dict[str, Any]) -> dict[str, Any]:
    """Return a CRD whose status has no field `resume`."""
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    del schema["properties"]["status"]["properties"]["resume"]
    return crd


def test_an_operator_that_is_newer_than_the_crd_serves_and_says_so(
    crd: ControlPlane, deployments: Deployments, kubelet: StageKubelet, start_operator: StartOperator, tmp_path: Path
) -> None:
    file = tmp_path / "older.yaml"
    file.write_text(yaml.safe_dump(without_resume(yaml.safe_load((ROOT / COMMITTED).read_text()))))
    url = f"{deployments.url}/demo/status?fieldManager=probe&dryRun=All"
    deployments.create(replicas=1, stages=1)
    probe = {"apiVersion": "bireme.dev/v1alpha1", "kind": "InferenceDeployment", "metadata": {"name": "demo"}}

    def takes_resume() -> bool:
        headers = {"content-type": "application/apply-patch+yaml"}
        return crd.api.patch(url, json=probe | {"status": {"resume": "x"}}, headers=headers).status_code == 200

    try:
        assert crd.kubectl("replace", "-f", str(file)).returncode == 0
        eventually(lambda: not takes_resume())
        operator = start_operator()
        deployments.await_condition("Ready")
        words = "lacks status.resume: apply the one of this release"
        eventually(lambda: words in deployments.condition("Ready")["message"])
        assert "kubectl apply -f crds/" in operator.log.read_text()
        deployments.change(replicas=2)
        deployments.await_condition("Ready")
    finally:
        assert crd.kubectl("replace", "-f", str(ROOT / COMMITTED)).returncode == 0
        eventually(takes_resume)


def test_t12_an_upgrade_changes_no_pod_and_a_rollout_that_was_begun_goes_on(
    old: OperatorProcess,
    crd: ControlPlane,
    deployments: Deployments,
    kubelet: StageKubelet,
    start_operator: StartOperator,
) -> None:
    deployments.create("plain", replicas=2, stages=2)
    deployments.create("rich", replicas=2, stages=1, recovery={"mode": "Recreate"}, engine={"maxRunningRequests": 3})
    rollout = {"drainTimeoutSeconds": 5, "maxSurge": 0, "maxUnavailable": 1, "partition": 1}
    deployments.create("held", replicas=2, stages=1, rollout=rollout)
    names = ("plain", "rich", "held")
    for name in names:
        deployments.await_condition("Ready", name=name)
    deployments.change("held", engine={"maxRunningRequests": 5})
    eventually(lambda: deployments.get("held")["status"].get("updatedReplicas") == 1)
    eventually(lambda: deployments.get("held")["status"].get("readyReplicas") == 2)
    uids = {name: deployments.uids(name) for name in names}
    said = {name: deployments.get(name)["status"] for name in names}
    assert old.stop() == 0
    replace_crd(crd, ROOT, takes_new=True)
    start_operator("new", worker_image=NEXT_IMAGE)
    eventually(lambda: deployments.lease()["spec"]["holderIdentity"] == "new")
    for name in names:
        deployments.change(name, recovery={"restartBudget": {"limit": 7}})  # touches no pod, but asks for a judgement
        now = eventually(lambda name=name: _judged_whole(deployments, name))  # type: ignore[misc]
        assert now["updateRevision"] == said[name]["updateRevision"]
        assert [group["restarts"] for group in now["groups"]] == [0, 0]
    assert {name: deployments.uids(name) for name in names} == uids
    deployments.change("held", rollout={"partition": 0})
    deployments.await_condition("Ready", name="held")
    assert len(set(deployments.uids("held").items()) & set(uids["held"].items())) == 1, "one was new already"


@pytest.mark.parametrize("name", NAMES)
def test_the_renderings_that_an_earlier_release_stored_mean_the_same_revisions(name: str) -> None:
    _, *owned = stored(name)
    kept = [body for body in owned if body["kind"] == "ControllerRevision"]
    assert kept
    for body in kept:
        read = read_revision(Owner(name, "default", "uid"), body)
        made = Rendering.of(read.spec, read.model_name)
        assert (made.revision, f"{name}-{made.key}") == (
            body["metadata"]["labels"][Label.REVISION],
            body["metadata"]["name"],
        )


def test_t12_what_an_earlier_release_stored_is_taken_over_as_it_is_under_another_default_image(
    crd: ControlPlane, deployments: Deployments, kubelet: StageKubelet, start_operator: StartOperator
) -> None:
    said = {name: restore(deployments, name, b"k" * 40) for name in NAMES}
    uids = {name: deployments.uids(name) for name in NAMES}
    count = sum(map(len, uids.values()))
    eventually(lambda: len(kubelet.started) == count)
    start_operator("new", worker_image=NEXT_IMAGE)
    for name in NAMES:
        deployments.change(name, recovery={"restartBudget": {"limit": 7}})  # touches no pod, but asks for a judgement
        now = eventually(lambda name=name: _judged_whole(deployments, name))  # type: ignore[misc]
        assert now["updateRevision"] == said[name]["updateRevision"]
        assert [group["revision"] for group in now["groups"]] == [one["revision"] for one in said[name]["groups"]]
        assert [group["restarts"] for group in now["groups"]] == [0, 0]
    assert {name: deployments.uids(name) for name in NAMES} == uids
    for name in NAMES:
        deployments.delete_pod(deployments.living(name)[1, 0])
        eventually(lambda name=name: deployments.incarnation(1, 0, name) == "2")  # type: ignore[misc]
        deployments.change(name, replicas=3)
        eventually(lambda name=name: len({group for group, _ in deployments.living(name)}) == 3)  # type: ignore[misc]
    made = {name: {place: image(pod) for place, pod in deployments.living(name).items()} for name in NAMES}
    assert made == {name: dict.fromkeys(made[name], "worker") for name in NAMES}, "as it was, and alike"


def test_a_restart_brings_groups_of_an_earlier_release_to_the_present_default_image(
    crd: ControlPlane, deployments: Deployments, kubelet: StageKubelet, start_operator: StartOperator
) -> None:
    restore(deployments, "plain", b"k" * 40)
    before = deployments.uids("plain")
    eventually(lambda: len(kubelet.started) == len(before))
    start_operator("new", worker_image=NEXT_IMAGE)
    eventually(lambda: deployments.get("plain")["status"].get("restart") == "")
    deployments.annotate(Annotation.RESTART, "now", "plain")
    eventually(lambda: not deployments.uids("plain").items() & before.items())
    deployments.await_ready("plain")
    assert {image(pod) for pod in deployments.living("plain").values()} == {NEXT_IMAGE}


def test_workers_of_the_wire_version_before_are_managed_as_usual(
    crd: ControlPlane, deployments: Deployments, kubelet: StageKubelet, start_operator: StartOperator
) -> None:
    kubelet.hold.set()
    start_operator()
    deployments.create(replicas=2, stages=2)
    pods = eventually(lambda: found if len(found := deployments.living()) == 4 else None)
    for pod in pods.values():
        kubelet.state_dir(pod).mkdir(parents=True)
        kubelet.speak(pod, WIRE_VERSION - 1)
    kubelet.hold.clear()
    deployments.await_ready()
    before = deployments.uids()
    deployments.delete_pod(pods[0, 1])
    eventually(lambda: deployments.incarnation(0, 1) == "2")
    deployments.await_ready()
    deployments.change(replicas=1)
    eventually(lambda: len(deployments.pods()) == 2)
    (group,) = {index for index, _ in deployments.living()}
    assert deployments.uids()[group, 0] == before[group, 0]


@pytest.mark.parametrize("version", [WIRE_VERSION - 2, WIRE_VERSION + 2])
def test_workers_further_off_are_left_alone_and_the_status_says_why_until_a_restart_brings_others(
    version: int, crd: ControlPlane, deployments: Deployments, kubelet: StageKubelet, start_operator: StartOperator
) -> None:
    start_operator()
    deployments.create(replicas=1, stages=2)
    deployments.await_ready()
    pods = deployments.living()
    kubelet.speak(pods[0, 0], version)
    told = eventually(
        lambda: next((one for one in deployments.get()["status"]["groups"] if one["reason"] == "WrongVersion"), None)
    )
    assert f"wire version {version}, this side understands {WIRE_VERSION - 1} to {WIRE_VERSION + 1}" in told["message"]
    assert deployments.uids() == {place: pod["metadata"]["uid"] for place, pod in pods.items()}
    deployments.annotate("bireme.dev/restart", "now")
    eventually(lambda: not deployments.uids().items() & {(p, pod["metadata"]["uid"]) for p, pod in pods.items()})
    deployments.await_ready()


def _judged_whole(deployments: Deployments, name: str) -> dict[str, Any] | None:
    """The status once it is about the present generation, and both groups serve."""
    body = deployments.get(name)
    status: dict[str, Any] = body["status"]
    current = status["observedGeneration"] == body["metadata"]["generation"]
    return status if current and status["readyReplicas"] == 2 else None
