"""Which deployment a verb is about, and what is said when there is none or nobody answers."""

import json
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from bireme.cli import kubectl
from bireme.cli.drain_node import check_leaving, lines
from bireme.cli.errors import Refused
from bireme.cli.main import main
from bireme.cli.rollback import choose
from bireme.cli.target import PastRevision
from bireme.names import Env, Exit


@pytest.fixture(autouse=True)
def nothing_configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(Env.RUN_DIR, str(tmp_path / "runs"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)


@pytest.fixture
def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _kubeconfig(path: Path, server: str) -> Path:
    config = {
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u", "namespace": "models"}}],
        "current-context": "here",
    }
    path.write_text(json.dumps(config))
    return path


@pytest.mark.parametrize("verb", [["status"], ["why"], ["restart"], ["rollback"]])
def test_without_any_cluster_a_deployment_of_this_machine_is_meant(
    verb: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(verb) == 1
    said = capsys.readouterr().err
    assert f"bireme {verb[0]}: no deployment has been up on this machine" in said
    assert "and no cluster is configured" in said


def test_kubectl_s_plugin_never_means_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert kubectl.main(["status", "demo"]) == 1
    assert "kubectl bireme status: no cluster is configured: ~/.kube/config is not there" in capsys.readouterr().err


def test_a_cluster_that_does_not_answer_is_named_by_its_address(
    tmp_path: Path, closed_port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    path = _kubeconfig(tmp_path / "config", f"http://127.0.0.1:{closed_port}")
    assert main(["status", "demo", "--kubeconfig", str(path)]) == 1
    said = capsys.readouterr().err
    assert f"no cluster answers at http://127.0.0.1:{closed_port}: " in said
    assert "Cannot connect" in said


def test_a_context_that_the_kubeconfig_does_not_have_is_named(
    tmp_path: Path, closed_port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    path = _kubeconfig(tmp_path / "config", f"http://127.0.0.1:{closed_port}")
    assert main(["why", "--kubeconfig", str(path), "--context", "there"]) == 1
    said = capsys.readouterr().err
    assert "there" in said
    assert "kubectl config get-contexts" in said


@pytest.mark.parametrize("content", ["", "[", "[]", "{}", "just words"])
def test_a_kubeconfig_that_is_none_is_named(content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "config"
    path.write_text(content)
    assert main(["why", "--kubeconfig", str(path)]) == 1
    assert f"{path} can't be used" in capsys.readouterr().err


def test_a_machine_is_one_node_that_nothing_can_leave(capsys: pytest.CaptureFixture[str]) -> None:
    for verb in ("drain-node", "undrain-node"):
        assert main([verb, "laptop"]) == Exit.BAD_CONFIGURATION
        assert "its only node" in capsys.readouterr().err


def test_the_plugin_has_no_verb_of_a_laptop(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        kubectl.main(["up"])
    assert ended.value.code == Exit.BAD_CONFIGURATION
    assert "kubectl bireme" in capsys.readouterr().err


def _past(*numbers: int, wanted: int) -> list[PastRevision]:
    return [PastRevision(one, f"r{one}", f"m{one}", {"path": "/m"}, wanted=one == wanted) for one in numbers]


def test_a_rollback_goes_to_the_newest_revision_that_is_not_wanted_now() -> None:
    assert choose(_past(1, 2, 3, wanted=3), None).number == 2
    assert choose(_past(1, 2, 3, wanted=2), None).number == 3
    assert choose(_past(1, 2, 3, wanted=3), 1).number == 1


@pytest.mark.parametrize(
    ("known", "number", "told"),
    [
        ([1], None, "there are: none"),
        ([1, 2], 7, "there are: 1"),
        ([1, 2], 2, "revision 2 is what is wanted now"),
    ],
)
def test_what_can_t_be_returned_to_is_refused(known: list[int], number: int | None, told: str) -> None:
    with pytest.raises(Refused, match=told):
        choose(_past(*known, wanted=known[-1]), number)


def test_nothing_is_chosen_before_the_present_revision_is_recorded() -> None:
    with pytest.raises(Refused, match="not recorded yet"):
        choose(_past(1, 2, wanted=3), None)


def _on_a_node(*groups: tuple[int, str], **spec: object) -> dict[tuple[str, str], dict[str, object]]:
    said = [{"index": index, "state": state, "reason": "None", "modelRevision": "m"} for index, state in groups]
    why = {"type": "Scheduled", "status": "False", "reason": "NoCapacity", "message": "no room for group 2"}
    return {("models", "demo"): {"spec": spec, "status": {"groups": said, "conditions": [why]}}}


def test_a_drain_shows_the_groups_on_the_node_and_those_on_their_way_elsewhere() -> None:
    found = _on_a_node((0, "Serving"), (1, "Serving"), (2, "Pending"))
    assert [text for _, text in lines({("models", "demo"): {0}}, found)] == [
        "models/demo  group 0  m  Serving  [on the node]",
        "models/demo  group 2  m  Pending  [elsewhere]",
        "models/demo  NoCapacity: no room for group 2",
    ]


@pytest.mark.parametrize(
    ("spec", "told"), [({"paused": True}, "spec.paused is true"), ({"disruption": {"onCordon": "Ignore"}}, "Ignore")]
)
def test_a_node_is_not_cordoned_for_a_group_that_would_never_leave_it(spec: dict[str, object], told: str) -> None:
    here = {("models", "demo"): {0}}
    with pytest.raises(Refused, match=told):
        check_leaving("gpu-7", here, _on_a_node((0, "Serving"), **spec))
    check_leaving("gpu-7", here, _on_a_node((0, "Serving")))
    check_leaving("gpu-7", {}, _on_a_node((0, "Serving"), **spec))


Main = Callable[[list[str]], int]


@pytest.mark.parametrize("program", [main, kubectl.main])
def test_every_verb_has_help_with_examples(program: Main, capsys: pytest.CaptureFixture[str]) -> None:
    for verb in kubectl.PROGRAM.verbs:
        with pytest.raises(SystemExit) as ended:
            program([verb, "--help"])
        assert ended.value.code == 0
        shown = capsys.readouterr().out
        assert "Examples:" in shown
        assert "--context" in shown
