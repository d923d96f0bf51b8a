"""`bireme restart`, `rollback`, `status` and `why` against a running `bireme up`, by its run directory."""

import json
import os
import signal
from collections.abc import Iterator

import pytest

from bireme.cli.main import main
from bireme.names import Env, Exit
from tests.local.running_up import Up, deployment, states, wait_until
from tests.support.deployment import alive


@pytest.fixture
def up(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Up]:
    root = tmp_path_factory.mktemp("u")
    monkeypatch.setenv(Env.RUN_DIR, str(root))
    up = Up.start(root, deployment("stage", replicas=2, pipeline=1))
    up.until_serving(2)
    yield up
    up.close()


def times(up: Up, event: str) -> list[float]:
    """When this event was told in the run."""
    return [line["at"] for line in up.events() if line.get("event") == event]


def test_a_restart_makes_every_group_anew_and_never_all_at_once(up: Up, capsys: pytest.CaptureFixture[str]) -> None:
    before = {pod["pid"] for pod in up.pods()}
    assert main(["restart"]) == 0
    assert "demo: every group is made anew" in capsys.readouterr().out
    content = up.content()
    assert content["status"]["restart"] == content["metadata"]["annotations"]["bireme.dev/restart"] != ""
    assert content["metadata"]["generation"] == 1, "nothing of the spec was changed"
    up.until(lambda: len(up.pods()) == 2)
    assert not before & {pod["pid"] for pod in up.pods()}
    wait_until(lambda: not [pid for pid in before if alive(pid)])
    up.until(lambda: bool(times(up, "GroupDrained")))
    assert times(up, "GroupServing")[2] < times(up, "GroupDrained")[0], "a successor serves before the first group goes"


def test_a_pause_leaves_everything_as_it_is_until_it_is_resumed(up: Up, capsys: pytest.CaptureFixture[str]) -> None:
    before = up.pids()
    assert main(["pause"]) == 0
    assert up.content()["spec"]["paused"] is True
    assert main(["pause"]) == 0
    assert "demo is paused already" in capsys.readouterr().out
    assert main(["why"]) == 0
    assert "`bireme resume demo` goes on." in capsys.readouterr().out
    assert main(["restart"]) == Exit.BAD_CONFIGURATION
    assert main(["resume"]) == 0
    content = up.content()
    assert content["spec"]["paused"] is False
    assert content["status"]["resume"] == content["metadata"]["annotations"]["bireme.dev/resume"] != ""
    assert up.pids() == before


def test_a_rollback_returns_to_the_checkpoint_before_without_a_new_process(
    up: Up, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["rollback"]) == Exit.BAD_CONFIGURATION
    assert "beside the present one there are: none" in capsys.readouterr().err
    pids = up.pids()
    assert main(["reload", "--path", "/models/tuned", "--revision", "2"]) == 0
    assert main(["rollback", "--list"]) == 0
    first, second = capsys.readouterr().out.splitlines()[-2:]
    assert first.startswith("revision 1: model revision 1 from path /models/none")
    assert second.startswith("revision 2: model revision 2 from path /models/tuned")
    assert second.endswith("(wanted now)")
    assert main(["rollback"]) == 0
    content = up.content()
    assert content["spec"]["model"]["source"] == {"path": "/models/none"}
    assert (content["status"]["modelRevision"], content["status"]["observedGeneration"]) == ("1", 3)
    assert up.pids() == pids
    assert main(["reload", "--path", "/models/other", "--revision", "3"]) == 0
    assert main(["rollback"]) == 0
    assert up.content()["status"]["modelRevision"] == "1", "the one that was wanted before, not the one before that"


def test_the_status_has_the_pid_of_every_process(up: Up, capsys: pytest.CaptureFixture[str]) -> None:
    pod = up.pod(0)
    rank = {"rank": 0, "alive": True, "pid": 4242, "phase": "Idle", "step": 0, "step_age_s": 0.0, "loads": 1}
    stage = {"stage": 0, "incarnation": pod["incarnation"], "boot": "b", "last_heard_s": 0.0, "ranks": [rank]}
    up.tell(pod, "ranks", json.dumps([stage]))
    up.until(lambda: up.pod(0)["ranks"] == [{"rank": 0, "pid": 4242, "phase": "Idle"}])
    assert main(["status"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["0", "0", "rank", "0", "4242", "Idle"] in rows
    assert any(row[:4] == ["0", "0", "supervisor", str(pod["pid"])] for row in rows)
    assert any(row[:2] == ["router", str(up.content()["local"]["routerPid"])] for row in rows)


def test_why_tells_a_loss_and_what_followed(up: Up, capsys: pytest.CaptureFixture[str]) -> None:
    os.kill(up.pod(0)["pid"], signal.SIGKILL)
    up.until(lambda: len(times(up, "GroupServing")) >= 3)
    # Events are told before the status is written: what it says of before the loss looks the same.
    up.until_content(
        lambda said: states(said) == ["Serving", "Serving"] and said["status"]["groups"][0]["restarts"] > 0
    )
    assert main(["why"]) == 0
    said = capsys.readouterr().out
    assert "demo: 2 of 2 groups serve." in said
    assert "it lost a part (" in said
    assert "ended by SIGKILL" in said
    assert "it served again, epoch" in said
    assert "Its parts were restarted once in all." in said
    assert "Nothing of it was lost." in said, "the other group"
    assert "step by step, of its last recovery" in said
    assert f"bireme timeline {up.directory / 'events.jsonl'}" in said


def test_what_is_not_up_can_t_be_asked(up: Up, capsys: pytest.CaptureFixture[str]) -> None:
    up.signal(signal.SIGTERM)
    up.end()
    assert main(["restart", "demo"]) == 1
    assert "demo is not up: start it with `bireme up`" in capsys.readouterr().err
    assert main(["status"]) == 1
    assert "this is its last word" in capsys.readouterr().err
