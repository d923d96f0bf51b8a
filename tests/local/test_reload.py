"""`bireme reload` against a running `bireme up`: what reaches the leaders, and what is refused before that."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from bireme.cli.main import main
from bireme.names import Env, Exit
from tests.local.running_up import Up, alive, deployment

WORDS = ["reload", "demo", "--path", "/models/tuned", "--revision", "2"]


@pytest.fixture
def up(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Up]:
    root = tmp_path_factory.mktemp("u")
    monkeypatch.setenv(Env.RUN_DIR, str(root))
    up = Up.start(root, deployment("stage", replicas=2))
    up.until(lambda: up.states() == ["Serving", "Serving"])
    yield up
    up.close()


def test_every_group_is_asked_and_no_process_is_made_anew(up: Up, capsys: pytest.CaptureFixture[str]) -> None:
    pids = up.pids()
    assert main(WORDS) == 0
    assert "group 1  2  Serving" in capsys.readouterr().out
    content = up.content()
    assert content["spec"]["model"]["source"] == {"path": "/models/tuned"}
    assert content["status"]["modelRevision"] == "2"
    assert (content["metadata"]["generation"], content["status"]["observedGeneration"]) == (2, 2)
    assert up.pids() == pids
    assert all(alive(pid) for pid in pids)
    for pod in up.pods():
        asked = up.state_dir(pod) / "reload"
        assert asked.exists() == (pod["stage"] == 0)
    [first, _] = [pod for pod in up.pods() if pod["stage"] == 0]
    body = json.loads((up.state_dir(first) / "reload").read_bytes())
    assert (body["source"], body["model_revision"], body["mode"]) == ("/models/tuned", "2", "finish")


def test_the_served_name_for_another_path_is_refused(up: Up, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*WORDS[:-1], "1"]) == Exit.BAD_CONFIGURATION
    assert "another --revision" in capsys.readouterr().err
    assert main(["reload", "demo", "--path", "models", "--revision", "2"]) == Exit.BAD_CONFIGURATION


def test_a_deployment_that_is_not_up_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(Env.RUN_DIR, str(tmp_path))
    assert main(WORDS) == 1
    assert "no deployment named demo" in capsys.readouterr().err
