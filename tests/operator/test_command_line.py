"""`kubectl bireme` on a real control plane: it sees what there is, tells what was, and changes what it should."""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from bireme.cli import kubectl
from bireme.cli.main import main
from bireme.names import Env, Exit
from tests.controlplane.cluster import ControlPlane
from tests.controlplane.polling import eventually
from tests.operator.conftest import StartOperator
from tests.operator.deployments import Deployments
from tests.operator.stage_kubelet import StageKubelet

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def bireme(
    crd: ControlPlane,
    namespace: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Run:
    """Run a verb of `kubectl bireme` in the test's namespace: exit code, output, complaints."""
    monkeypatch.setenv("KUBECONFIG", str(crd.kubeconfig))
    monkeypatch.setenv(Env.RUN_DIR, str(tmp_path / "no-runs"))

    def run(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = kubectl.main([*words, "-n", namespace])
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


def test_what_there_is_and_what_was_is_told(
    deployments: Deployments, kubelet: StageKubelet, start_operator: StartOperator, bireme: Run, crd: ControlPlane
) -> None:
    assert bireme("status")[0] == 1
    assert "no InferenceDeployment is in namespace" in bireme("status")[2]
    deployments.create(replicas=2, stages=2)
    code, said, _ = bireme("why")
    assert (code, "no operator has looked at it" in said) == (1, True)
    start_operator()
    deployments.await_condition("Ready")
    words = f"{deployments.namespace}/demo  2 of 2 groups serve"
    code, said, _ = eventually(lambda: found if words in (found := bireme("status"))[1] else None)
    assert code == 0
    for (group, stage), pod in deployments.living().items():
        row = next(line.split() for line in said.splitlines() if pod["metadata"]["name"] in line)
        assert row[:5] == [str(group), str(stage), pod["metadata"]["name"], "Running", pod["spec"]["nodeName"]]
    shown = json.loads(bireme("status", "demo", "-o", "json")[1])
    assert shown["kind"] == "InferenceDeployment"
    assert "memory" not in shown["status"]
    assert "managedFields" not in shown["metadata"]
    code, said, _ = bireme("why", "demo")
    assert code == 0
    assert "demo: 2 of 2 groups serve." in said
    assert said.count("Nothing of it was lost.") == 2
    deployments.delete_pod(deployments.living()[0, 1])
    eventually(lambda: deployments.incarnation(0, 1) == "2")
    eventually(lambda: any(note.startswith("group 0: epoch") for note in deployments.events("GroupServing")[1:]))
    said = eventually(lambda: text if "it served again, epoch" in (text := bireme("why", "demo")[1]) else None)
    assert "it lost a part (StageLost: " in said
    assert f"stage 1 is made anew as {deployments.living()[0, 1]['metadata']['name']}" in said
    assert "Its last start or recovery took" in said


def test_a_restart_makes_every_group_anew_within_the_limits(
    deployments: Deployments, kubelet: StageKubelet, start_operator: StartOperator, bireme: Run
) -> None:
    start_operator()
    deployments.create(replicas=2, stages=1)
    deployments.await_condition("Ready")
    before = set(deployments.uids().values())
    code, said, _ = bireme("restart", "demo")
    assert code == 0, said
    deployments.await_condition("Ready")
    assert not before & set(deployments.uids().values())
    body = deployments.get()
    assert body["status"]["restart"] == body["metadata"]["annotations"]["bireme.dev/restart"]
    assert body["metadata"]["generation"] == 1
    managers = {field["manager"] for field in body["metadata"]["managedFields"]}
    assert "bireme-cli" in managers
    deployments.change(paused=True)
    code, _, complaint = bireme("restart", "demo")
    assert (code, "spec.paused is true" in complaint) == (Exit.BAD_CONFIGURATION, True)


def test_what_has_failed_and_what_was_paused_is_resumed_and_nothing_else_is_touched(
    deployments: Deployments, kubelet: StageKubelet, start_operator: StartOperator, bireme: Run
) -> None:
    start_operator()
    recovery = {"restartBudget": {"limit": 1, "windowSeconds": 3600}, "backoff": {"initialSeconds": 1, "maxSeconds": 1}}
    deployments.create(replicas=2, stages=1, recovery=recovery)
    deployments.await_condition("Ready")
    before = deployments.uids()
    kubelet.crash(deployments.living()[0, 0], 70, "bireme-worker: it broke", 1, waiting=True)
    deployments.await_condition("Stalled")
    code, said, _ = bireme("why", "demo")
    assert (code, "`bireme resume demo` gives it a fresh restart budget." in said) == (1, True)
    code, said, complaint = bireme("resume", "demo")
    assert code == 0, said + complaint
    body = deployments.get()
    assert body["status"]["resume"] == body["metadata"]["annotations"]["bireme.dev/resume"]
    assert deployments.incarnation(0, 0) == "2"
    assert deployments.uids()[1, 0] == before[1, 0]

    assert bireme("pause", "demo")[0] == 0
    assert deployments.get()["spec"]["paused"] is True
    assert "is paused already" in bireme("pause", "demo")[1]
    now = deployments.uids()
    deployments.change(replicas=3)
    eventually(lambda: deployments.get()["status"]["observedGeneration"] == deployments.get()["metadata"]["generation"])
    assert "`bireme resume demo` goes on." in bireme("why", "demo")[1]
    assert deployments.uids() == now
    assert bireme("resume", "demo")[0] == 0
    assert deployments.await_ready()["readyReplicas"] == 3
    assert now.items() <= deployments.uids().items()


def test_a_rollback_returns_to_what_was_wanted_before(
    deployments: Deployments, kubelet: StageKubelet, start_operator: StartOperator, bireme: Run
) -> None:
    start_operator()
    deployments.create(replicas=1, stages=1)
    deployments.await_condition("Ready")
    before = deployments.uids()
    code, said, _ = bireme("reload", "demo", "--path", "/models/b", "--revision", "two", "--mode", "restart")
    assert code == 0, said
    asked = json.loads((kubelet.state_dir(deployments.living()[0, 0]) / "reload").read_bytes())
    assert (asked["source"], asked["model_revision"], asked["mode"]) == ("/models/b", "two", "restart")
    assert deployments.await_ready()["modelRevision"] == "two"
    assert bireme("rollback", "demo")[0] == 0
    assert deployments.get()["spec"]["model"]["source"] == {"path": "/models/m"}
    assert deployments.await_ready()["modelRevision"] == "one"
    assert deployments.uids() == before, "a checkpoint is reloaded in place"
    deployments.change(engine={"maxRunningRequests": 3}, replicas=2)
    deployments.await_condition("Ready")
    code, said, complaint = bireme("rollback", "demo", "--list")
    assert code == 0, complaint
    assert [line.split(":")[0] for line in said.splitlines()] == ["revision 2", "revision 3", "revision 4"]
    assert said.splitlines()[-1].endswith("(wanted now)")
    assert bireme("rollback", "demo")[0] == 0
    spec = deployments.get()["spec"]
    assert spec["engine"]["maxRunningRequests"] == 64
    assert spec["model"]["revision"] == "one", "the one that was wanted before, not the one before that"
    assert spec["replicas"] == 2, "a policy is no part of a revision"
    code, _, complaint = bireme("rollback", "demo", "--to", "99")
    assert (code, "no such revision" in complaint) == (Exit.BAD_CONFIGURATION, True)


def test_kubectl_finds_its_plugin_and_bireme_finds_the_cluster(
    deployments: Deployments, bireme: Run, crd: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    deployments.create(replicas=1, stages=1)
    found = crd.kubectl("bireme", "status", "demo", "-n", deployments.namespace)
    assert found.returncode == 0, found.stderr
    assert f"{deployments.namespace}/demo  0 of 1 groups serve" in found.stdout
    assert main(["status", "demo", "-n", deployments.namespace]) == 0
    assert main(["drain-node", "no-such-node"]) == 1
