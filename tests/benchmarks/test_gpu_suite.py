"""The driver of the GPU measurements: what it leaves out, how it judges, and that it runs, on a CPU."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.gpu.cases import CASE, CASES, JOB, Task, UnknownCase, able, chosen, fitting, lanes_of, length, tasks_of
from benchmarks.gpu.external import read_peers
from benchmarks.gpu.lines import BY_KEY, LINES, Figures, performance_rows, table

ROOT = Path(__file__).parent.parent.parent


def test_every_case_has_a_job_and_lines_and_every_line_a_case() -> None:
    assert {case.job for case in CASES} == set(JOB)
    assert {case.line for case in CASES} == {line.key.partition(".")[0] for line in LINES}


def test_a_line_names_all_its_cases() -> None:
    assert [case.name for case in chosen("A13,A3")] == ["A13tg", "A13tp", "A13pg", "A13pp", "A3", "A3h"]
    assert [case.name for case in chosen("A13t,A1,M6p")] == ["A13tg", "A13tp", "A1", "M6p"]
    assert chosen("all") == list(CASES)
    with pytest.raises(UnknownCase, match="there is no case A99"):
        chosen("A1,A99")


def test_how_often_is_part_of_a_name_and_of_the_plan() -> None:
    asked = chosen("A13tp:8,A13pg,A1", 4)
    assert [case.text for case in asked] == ["A13tp:8", "A13pg:4", "A1"]
    assert chosen(",".join(case.text for case in asked)) == asked
    assert [task.seconds for task in tasks_of(asked)] == [46.0, 125.0, 85.0]
    for wrong in ("A1:2", "A13tp:0", "A13tp:x"):
        with pytest.raises(UnknownCase, match=wrong):
            chosen(wrong)


def test_the_least_valuable_cases_are_left_out_and_none_that_costs_nothing() -> None:
    kept, left = fitting(CASES, [], 2, 560)
    assert length(tasks_of(kept), 2) <= 560
    assert left
    assert CASE["A1"] in kept
    alone = [CASE["A1"], CASE["A10"]]
    assert fitting(alone, [], 1, 48) == ([CASE["A1"]], [CASE["A10"]])


def test_cases_need_their_gpus() -> None:
    wanted = chosen("A1,A9,A13tp,M4,M6g")
    assert [[case.name for case in able(wanted, gpus)] for gpus in (0, 1, 2, 4)] == [
        ["A1", "A13tp", "M6g"],
        ["A1"],
        ["A1", "A9", "A13tp"],
        ["A1", "A9", "A13tp", "M4", "M6g"],
    ]


def test_a_line_without_bounds_is_only_shown() -> None:
    figures = Figures(ours={"P1.compute": 80.0, "M5.tp4.latency": 16.0})
    assert figures.verdict(BY_KEY["P1.compute"]) == "-"
    assert figures.verdict(BY_KEY["M5.tp4.latency"]) == "aim"
    assert "| – | 80 | one card |" in performance_rows(figures, "one card")


def test_peers_have_the_second_gpu_and_follow_where_there_is_one() -> None:
    peer, tasks = Task("peer", 1, 100), tasks_of([CASE["A1"], CASE["A5"], CASE["A7"]])
    lanes, together = lanes_of([*tasks, peer], 2)
    assert [[task.name for task in lane] for lane in lanes] == [["solo", "small"], ["peer"]]
    assert [task.name for task in together] == ["tensor"]
    assert [task.name for task in lanes_of([*tasks, peer], 1)[0][0]] == ["solo", "small", "peer"]


@pytest.mark.parametrize(("value", "met"), [(6.1, "aim"), (6.4, "reach"), (6.6, "MISSED")])
def test_a_figure_is_judged_by_its_peer_of_the_same_call(value: float, met: str) -> None:
    figures = Figures(ours={"A1.500": value}, peers={"A1.500": 6.5})
    assert figures.verdict(BY_KEY["A1.500"]) == met
    assert table(figures).splitlines()[1].endswith(met)


def test_a_bound_on_another_figure_waits_for_it() -> None:
    figures = Figures(ours={"A3.http": 9500.0})
    assert figures.verdict(BY_KEY["A3.http"]) == "?"
    figures.ours["A3.offline"] = 10_000.0
    assert figures.verdict(BY_KEY["A3.http"]) == "reach"
    assert "≥ 9,700 | 9,500 (missed) | one card |" in performance_rows(figures, "one card")


def test_a_peer_is_a_command_and_patterns(tmp_path: Path) -> None:
    told = [{"name": "x", "gpus": 1, "seconds": 9, "command": ["x"], "values": {"A7.500": r"itl ([\d.]+)"}}]
    (tmp_path / "peers.json").write_text(json.dumps(told))
    assert not read_peers(tmp_path, {"A1"})
    (peer,) = read_peers(tmp_path, {"A7"})
    assert peer.figures("warm-up itl 9.0\nitl 4.2\n") == {"A7.500": 4.2}


def test_the_driver_runs_a_case_on_a_cpu(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.gpu.suite", "--cases", "A1,A10", "--rehearse"]
    done = subprocess.run([*command, "--logs", str(tmp_path)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr + (tmp_path / "solo.log").read_text()
    (last,) = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert last["figures"].keys() == {"A1.500", "A1.4000"}
    assert not last["failed"]
    assert last["left_out"] == {"A10": "needs 1 GPU, here are 0"}
    assert (tmp_path / "rows.md").read_text().count("\n") == 2
