"""`bireme reload` against a running `bireme up`: what reaches the leaders, and what is refused before that."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from bireme.cli.main import main
from bireme.names import Env, Exit, Reason
from bireme_operator.local.rundir import RunDir
from bireme_operator.local.wish import SIGNAL, Wish, write_wish
from tests.local.running_up import Up, deployment
from tests.support.deployment import alive

WORDS = ["reload", "demo", "--path", "/models/tuned", "--revision", "2"]


@pytest.fixture
def up(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Up]:
    root = tmp_path_factory.mktemp("u")
    monkeypatch.setenv(Env.RUN_DIR, str(root))
    up = Up.start(root, deployment("stage", replicas=2))
    up.until_serving(2)
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


def test_after_a_failed_reload_the_same_can_be_asked_again_and_the_events_tell_the_truth(
    up: Up, capsys: pytest.CaptureFixture[str]
) -> None:
    unfit = [up.state_dir(pod) / "unfit" for pod in up.pods() if pod["stage"] == 0]
    for file in unfit:
        file.touch()
    assert main(WORDS) == Exit.BAD_CHECKPOINT
    assert "Serving (ReloadFailed): model revision 2: truncated" in capsys.readouterr().out
    for file in unfit:
        file.unlink()
    assert main(WORDS) == 0
    told = [line["event"] for line in up.events() if line["kind"] == "news" and "Reload" in line["event"]]
    assert told == ["GroupReloadFailed", "GroupReloaded", "GroupReloaded"]


def test_a_name_belongs_to_the_first_weights_that_served_under_it(up: Up, capsys: pytest.CaptureFixture[str]) -> None:
    unfit = [up.state_dir(pod) / "unfit" for pod in up.pods() if pod["stage"] == 0]
    for file in unfit:
        file.touch()
    assert main(["reload", "demo", "--path", "/models/truncated", "--revision", "2"]) == Exit.BAD_CHECKPOINT
    for file in unfit:
        file.unlink()
    assert main(WORDS) == 0, "nothing has served under that name"
    for revision, path in (("1", "/models/none"), ("2", "/models/tuned")):
        assert main(["reload", "demo", "--path", "/models/other", "--revision", revision]) == Exit.BAD_CONFIGURATION
        assert path in capsys.readouterr().err
    assert main(["reload", "demo", "--path", "/models/none", "--revision", "1"]) == 0


def test_a_wish_that_slipped_past_the_command_line_is_refused_by_the_planner(up: Up) -> None:
    write_wish(RunDir(up.directory).wishes, Wish("/models/other", "1", "finish"))
    up.signal(SIGNAL)
    up.until(lambda: _stalled(up) == Reason.NAME_TAKEN)
    assert up.states() == ["Serving", "Serving"]
    assert not any((up.state_dir(pod) / "reload").exists() for pod in up.pods())


def _stalled(up: Up) -> str:
    found = (one for one in up.content()["status"]["conditions"] if one["type"] == "Stalled")
    return next((str(one["reason"]) for one in found if one["status"] == "True"), "")


def test_a_deployment_that_is_not_up_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(Env.RUN_DIR, str(tmp_path))
    assert main(WORDS) == 1
    assert "no deployment named demo" in capsys.readouterr().err
