"""T12: the operator of the release before hands over to this one, CRD included, and no pod has another uid."""

import io
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from bireme.api.crd import COMMITTED
from tests.controlplane.cluster import ControlPlane
from tests.controlplane.polling import eventually
from tests.operator.conftest import StartOperator
from tests.operator.deployments import Deployments
from tests.operator.process import OperatorProcess
from tests.operator.stage_kubelet import StageKubelet

_ROOT = Path(__file__).parents[2]
RELEASE = "64c872bbc83695ad851c610e033ea888c5ae420e"
"""Until there is a tag: the last state that was given to others."""
NEW: dict[str, Any] = {"rollout": {"canary": {}}}
"""What this release takes and the one before refuses."""


def git(*words: str) -> bytes:
    done = subprocess.run(["git", "-C", str(_ROOT), *words], capture_output=True, check=False)
    if done.returncode:
        pytest.skip(f"the release before is not in this checkout: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout


def replace_crd(plane: ControlPlane, source: Path, *, takes_new: bool) -> None:
    """Replace the CRD and wait until the server goes by it."""
    assert plane.kubectl("replace", "-f", str(source / COMMITTED)).returncode == 0
    body = {
        "apiVersion": "bireme.dev/v1alpha1",
        "kind": "InferenceDeployment",
        "metadata": {"name": "probe"},
        "spec": {"model": {"source": {"path": "/m"}, "revision": "1"}, **NEW},
    }
    url = "/apis/bireme.dev/v1alpha1/namespaces/default/inferencedeployments?dryRun=All"
    eventually(lambda: (plane.api.post(url, json=body).status_code == 201) == takes_new)


@pytest.fixture
def old(
    crd: ControlPlane, tmp_path: Path, start_operator: StartOperator, monkeypatch: pytest.MonkeyPatch
) -> Iterator[OperatorProcess]:
    """The operator of the release before, whose CRD is in the cluster until the test or its end changes that."""
    path = tmp_path / "before"
    with tarfile.open(fileobj=io.BytesIO(git("archive", RELEASE, "bireme", "operator", "crds"))) as content:
        content.extractall(path, filter="data")
    replace_crd(crd, path, takes_new=False)
    with monkeypatch.context() as patched:
        patched.setenv("PYTHONSAFEPATH", "1")  # this checkout is the working directory
        patched.setenv("PYTHONPATH", f"{path / 'operator'}:{path}")
        used = subprocess.check_output(
            [sys.executable, "-c", "import bireme_operator; print(bireme_operator.__file__)"]
        )
        assert Path(used.decode().strip()).is_relative_to(path)
        operator = start_operator("old")
    yield operator
    replace_crd(crd, _ROOT, takes_new=True)


def without_resume(crd: dict[str, Any]) -> dict[str, Any]:
    """Return a CRD whose status has no field `resume`."""
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    del schema["properties"]["status"]["properties"]["resume"]
    return crd


def test_an_operator_that_is_newer_than_the_crd_serves_and_says_so(
    crd: ControlPlane, deployments: Deployments, kubelet: StageKubelet, start_operator: StartOperator, tmp_path: Path
) -> None:
    file = tmp_path / "older.yaml"
    file.write_text(yaml.safe_dump(without_resume(yaml.safe_load((_ROOT / COMMITTED).read_text()))))
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
        assert crd.kubectl("replace", "-f", str(_ROOT / COMMITTED)).returncode == 0
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
    replace_crd(crd, _ROOT, takes_new=True)
    start_operator("new")
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


def _judged_whole(deployments: Deployments, name: str) -> dict[str, Any] | None:
    """The status once it is about the present generation, and both groups serve."""
    body = deployments.get(name)
    status: dict[str, Any] = body["status"]
    current = status["observedGeneration"] == body["metadata"]["generation"]
    return status if current and status["readyReplicas"] == 2 else None
