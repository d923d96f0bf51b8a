"""What the event log of a run is turned into: the steps of each recovery, as text and as a page."""

import json
from pathlib import Path
from typing import Any

import pytest

from bireme.cli import timeline
from bireme.cli.local import steps_told
from bireme.cli.main import main
from bireme.cli.page import page
from bireme.cli.recoveries import Line, recoveries
from bireme.cli.router_restarts import router_restarts


def _rank(at: float, stage: int, pid: int, phase: str, epoch: int = 0) -> dict[str, Any]:
    return {"at": at, "kind": "rank", "group": 0, "stage": stage, "rank": 0, "pid": pid, "phase": phase, "epoch": epoch}


def _group(at: float, state: str, reason: str = "None", message: str = "", epoch: int = 1) -> dict[str, Any]:
    fields = {"state": state, "reason": reason, "message": message, "epoch": epoch}
    return {"at": at, "kind": "group", "group": 0, **fields}


RUN = [
    _group(0.0, "Starting", "Loading"),
    _rank(0.1, 0, 10, "Loading"),
    _rank(0.1, 1, 11, "Loading"),
    _rank(0.8, 0, 10, "Serving"),
    _rank(0.8, 1, 11, "Serving"),
    _group(0.8, "Serving", epoch=1),
    _group(100.0, "Recovering", "RankLost", "stage 1: rank 0 was ended by <SIGKILL>"),
    _rank(100.0, 1, 0, "Down"),
    _rank(100.0, 0, 10, "Ending"),
    _rank(100.1, 0, 10, "Idle"),
    _rank(100.2, 1, 12, "Loading"),
    _rank(100.7, 1, 12, "Idle"),
    _rank(100.8, 0, 10, "Forming"),
    _rank(100.8, 1, 12, "Forming"),
    _rank(100.9, 0, 10, "Serving", 2),
    _rank(100.9, 1, 12, "Serving", 2),
    _group(101.0, "Serving", epoch=2),
]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    file = tmp_path / "events.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in RUN))
    return file


def test_a_recovery_has_its_steps_in_order_with_their_times(log: Path) -> None:
    start, recovery = recoveries(timeline.read(log))
    assert (start.first, start.took_s) == (True, 0.8)
    assert (recovery.first, recovery.took_s) == (False, 1.0)
    steps = recovery.steps()
    assert list(steps) == ["detect", "abort", "rejoin", "load", "warm", "serve"]
    assert steps["load"] == pytest.approx((0.2, 0.7))
    assert steps["serve"] == (1.0, 1.0)
    assert "SIGKILL" in recovery.cause


def test_a_recovery_that_goes_on_says_so() -> None:
    lines = [Line(**line) for line in RUN[:-1]]
    assert recoveries(lines)[-1].took_s is None
    assert "not serving yet" in recoveries(lines)[-1].title


def test_the_page_needs_nothing_else_and_escapes_what_processes_said(log: Path) -> None:
    content = page("demo", recoveries(timeline.read(log)))
    assert "&lt;SIGKILL&gt;" in content
    for foreign in ("<SIGKILL>", "http", "<script"):
        assert foreign not in content
    assert content.count("<rect") == 7  # two load at first; later one is down, one ends, one loads, two form


def test_the_command_prints_text_and_writes_a_page(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["timeline", str(log), "--last", "1"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("group 0: recovery, serving after 1.00 s")
    assert main(["timeline", str(log), "--html", str(log.with_suffix(".html"))]) == 0
    assert log.with_suffix(".html").read_text().startswith("<!doctype html>")


def test_a_line_that_is_none_of_ours_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "events.jsonl"
    file.write_text('{"at": 1, "kind": "group", "group": 0}\nhello\n')
    assert main(["timeline", str(file)]) == 64
    assert "line 2" in capsys.readouterr().err


def test_why_says_how_each_group_is_and_what_its_newest_recovery_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BIREME_RUN_DIR", str(tmp_path))
    folder = tmp_path / "demo"
    folder.mkdir()
    (folder / "events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in RUN))
    since = "2026-11-28T00:00:00Z"
    serving = {"index": 0, "state": "Serving", "reason": "None", "message": "", "since": since}
    failed = {**serving, "index": 1, "state": "Failed", "reason": "BudgetExhausted", "message": "7 restarts in an hour"}
    ready = {"type": "Ready", "status": "False", "reason": "SomeGroupsServing", "lastTransitionTime": since}
    status = {"readyReplicas": 1, "conditions": [ready | {"message": "1 Failed"}], "groups": [serving, failed]}
    content = {"metadata": {"name": "demo"}, "spec": {"replicas": 2}, "status": status}
    (folder / "status.json").write_text(json.dumps(content))
    assert main(["why", "demo"]) == 1
    said = capsys.readouterr().out
    assert "demo: 1 of 2 groups serve. It is not ready since 2026-11-28T00:00:00Z" in said
    assert "Group 0 serves epoch 0 since 2026-11-28T00:00:00Z" in said
    assert "rank 0 was ended by <SIGKILL>" in said
    assert "all weights were in place by 0.70 s" in said
    assert "Group 1 is Failed" in said
    assert "(BudgetExhausted: More restarts than `spec.recovery.restartBudget` allows): 7 restarts in an hour." in said
    assert main(["why", "another"]) != 0


def test_a_restart_of_the_router_is_a_recovery_of_its_own(
    log: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    router = {"kind": "router", "group": -1, "restarts": 0, "message": ""}
    told = [
        {**router, "at": 200.0, "pid": 20, "phase": "Running"},
        {**router, "at": 201.0, "pid": 0, "phase": "BackingOff", "message": "ended by SIGKILL"},
        {**router, "at": 201.5, "pid": 21, "phase": "Running", "restarts": 1},
    ]
    log.write_text(log.read_text() + "".join(json.dumps(line) + "\n" for line in told))
    [restart] = router_restarts(timeline.read(log))
    assert (restart.cause, restart.took_s) == ("ended by SIGKILL", 0.5)
    assert [moment.step for moment in restart.moments] == ["detect", "rejoin"]
    assert main(["timeline", str(log), "--last", "1"]) == 0
    assert "router: started as process 21" in capsys.readouterr().out


def test_weights_whose_arrival_nobody_told_were_there_when_their_rank_formed() -> None:
    unseen = [line for line in RUN if (line["at"], line.get("phase")) != (100.7, "Idle")]
    [*_, recovery] = recoveries(Line(**line) for line in unseen)
    assert "all weights were in place by 0.80 s" in steps_told(recovery)
