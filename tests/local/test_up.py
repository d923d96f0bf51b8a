"""`bireme up` as a process: what it keeps running, what it says, and that nothing is left of it."""

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bireme.cli.main import main
from bireme.cli.router_restarts import router_restarts
from bireme.cli.timeline import read
from bireme.names import Env, Exit
from tests.local.running_up import Up, deployment, states, wait_until
from tests.support.deployment import alive

Start = Callable[..., Up]


def pod_of(said: dict[str, Any], stage: int) -> dict[str, Any]:
    (pod,) = (pod for pod in said["local"]["pods"] if pod["stage"] == stage)
    return dict(pod)


@pytest.fixture
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    ups: list[Up] = []

    def start(text: str, *scene: str) -> Up:
        ups.append(Up.start(tmp_path_factory.mktemp("u"), text, *scene))
        return ups[-1]

    yield start
    for up in ups:
        up.close()


@pytest.fixture
def serving(start: Start) -> Up:
    up = start(deployment("stage"))
    up.until_serving()
    return up


def test_the_groups_of_a_deployment_come_up_and_the_endpoint_is_told(start: Start) -> None:
    up = start(deployment("stage", replicas=2))
    content = up.until_serving(2)
    ready = next(c for c in content["status"]["conditions"] if c["type"] == "Ready")
    assert ready["status"] == "True"
    assert content["metadata"]["generation"] == content["status"]["observedGeneration"] == 1
    assert len({pod["address"] for pod in content["local"]["pods"]}) == 4
    routes = json.loads((up.directory / "routes.json").read_bytes())
    assert routes["models"] == ["demo"]
    assert [route["index"] for route in routes["groups"]] == [0, 1]
    up.until(lambda: f"demo is served at {content['local']['endpoint']}" in up.out())
    up.until(lambda: "make engine.kvCache.bytes 3.6 times as large" in up.out())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_one_signal_drains_waits_for_running_requests_and_ends_with_zero(serving: Up, number: signal.Signals) -> None:
    pids, leader = serving.pids(), serving.pod(0)
    serving.tell(leader, "requests", "1")
    serving.signal(number)
    said = serving.until_content(lambda said: said["status"]["groups"][0]["message"] == "1 requests still run")
    assert states(said) == ["Draining"]
    assert (serving.state_dir(leader) / "drain").exists()
    assert all(alive(pod["pid"]) for pod in said["local"]["pods"])
    serving.tell(leader, "requests", "0")
    assert serving.end() == 0
    assert "stopping: running answers may take up to 300 s" in serving.out()
    assert not [pid for pid in pids if alive(pid)]
    assert not (serving.directory / "pods").exists()
    assert not (serving.directory / "lock").exists()


def test_a_terminal_that_is_closed_is_told_of_twice_and_drains_all_the_same(serving: Up) -> None:
    leader = serving.pod(0)
    serving.tell(leader, "requests", "1")
    for _ in range(2):
        serving.signal(signal.SIGHUP)
        serving.until(lambda: serving.states() == ["Draining"])
    serving.tell(leader, "requests", "0")
    assert serving.end() == 0
    assert serving.out().count("stopping: running answers") == 1


def test_a_second_signal_ends_everything_at_once(serving: Up) -> None:
    pids = serving.pids()
    serving.tell(serving.pod(0), "requests", "1")
    serving.signal(signal.SIGINT)
    serving.until(lambda: serving.states() == ["Draining"])
    serving.signal(signal.SIGINT)
    assert serving.end() == 130
    assert "ending everything now" in serving.out()
    wait_until(lambda: not [pid for pid in pids if alive(pid)])


def test_no_process_is_left_after_a_sigkill(start: Start) -> None:
    up = start(deployment("parent", replicas=2))
    up.until(lambda: len(up.pods()) == 4 and all((up.state_dir(pod) / "child").exists() for pod in up.pods()))
    local = up.until_content(lambda said: said["local"]["routerPid"] > 0)["local"]
    children = [int((up.state_dir(pod) / "child").read_text()) for pod in local["pods"]]
    pids = [local["routerPid"], *(pod["pid"] for pod in local["pods"]), *children]
    assert len(pids) == 9
    assert all(alive(pid) for pid in pids)
    up.signal(signal.SIGKILL)
    wait_until(lambda: not [pid for pid in pids if alive(pid)])


def test_a_killed_stage_is_started_again_and_told_in_the_status(serving: Up) -> None:
    leader, member = serving.pod(0), serving.pod(1)
    os.kill(member["pid"], signal.SIGKILL)
    said = serving.until_content(lambda said: states(said) == ["Serving"] and pod_of(said, 1)["restarts"] == 1)
    assert said["status"]["groups"][0]["restarts"] == 1
    assert pod_of(said, 0)["pid"] == leader["pid"]
    assert pod_of(said, 1)["address"] == member["address"]


def test_a_leader_that_left_is_replaced_and_the_members_are_told(serving: Up) -> None:
    old, member = serving.pod(0), serving.state_dir(serving.pod(1))
    os.kill(old["pid"], signal.SIGTERM)
    serving.until((member / "leader").exists)
    said = serving.until_content(
        lambda said: states(said) == ["Serving"] and said["status"]["groups"][0]["epoch"] > 2 << 20
    )
    leader = max((pod for pod in said["local"]["pods"] if pod["stage"] == 0), key=lambda pod: int(pod["incarnation"]))
    assert leader["incarnation"] == 2
    assert json.loads((member / "leader").read_bytes()) == {"address": leader["address"], "incarnation": 2}


def test_a_leader_that_says_otherwise_is_believed(serving: Up) -> None:
    serving.tell(serving.pod(0), "state", "Recovering")
    serving.until(lambda: serving.states() == ["Recovering"])


def test_a_stopped_leader_is_not_called_serving(serving: Up) -> None:
    pid = serving.pod(0)["pid"]
    os.kill(pid, signal.SIGSTOP)
    said = serving.until_content(lambda said: said["status"]["groups"][0]["reason"] == "WorkerUnreachable")
    assert states(said) == ["Recovering"]
    os.kill(pid, signal.SIGCONT)
    serving.until(lambda: serving.states() == ["Serving"])


def test_a_router_that_dies_is_started_again(serving: Up) -> None:
    router = serving.content()["local"]["routerPid"]
    os.kill(router, signal.SIGKILL)
    said = serving.until_content(
        lambda said: said["local"]["routerPid"] not in {0, router} and said["local"]["router"]["phase"] == "Running"
    )
    told = said["local"]["router"]
    assert (told["restarts"], told["message"]) == (1, "ended by SIGKILL")
    serving.until(lambda: "router: ended by SIGKILL; it is started again" in serving.out())
    events = serving.directory / "events.jsonl"
    serving.until(lambda: [one.took_s is None for one in router_restarts(read(events))] == [False])


@pytest.mark.parametrize(("code", "reason"), [(64, "BadConfiguration"), (65, "BadCheckpoint")])
def test_up_ends_with_the_worker_s_words_when_no_group_can_ever_start(start: Start, code: int, reason: str) -> None:
    up = start(deployment(f"exit {code}", TERMINATION="tensor 2 does not divide 9 heads"))
    assert up.end() == code
    assert f"no group can start: {reason}: group 0: stage " in up.err()
    assert "tensor 2 does not divide 9 heads" in up.err()
    assert f"logs are in {up.directory / 'logs'}" in up.out()


def test_a_group_that_crashes_too_often_ends_up_when_it_never_served(start: Start) -> None:
    text = deployment("exit 70", pipeline=1).replace("recovery:", "recovery:\n    restartBudget: {limit: 2}")
    up = start(text)
    assert up.end() == Exit.INTERNAL
    assert "BudgetExhausted" in up.err()
    assert "the last line of the log" in up.err()


def test_the_status_command_shows_it_while_it_is_up_and_says_when_it_is_not(
    serving: Up, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(Env.RUN_DIR, str(serving.root))
    assert main(["status"]) == 0
    shown = capsys.readouterr().out
    assert "demo  1 of 1 groups serve" in shown
    for pod in serving.pods():
        assert all(str(pod[key]) in shown for key in ("name", "pid", "address"))
    assert main(["status", "demo", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["local"]["pid"] == serving.process.pid
    assert main(["status", "-o", "yaml"]) == 0
    assert "kind: InferenceDeployment" in capsys.readouterr().out
    serving.signal(signal.SIGTERM)
    serving.end()
    assert main(["status", "demo", "--watch"]) == 1
    assert "demo is not up any more" in capsys.readouterr().err


def test_a_second_up_of_the_same_name_is_refused(serving: Up) -> None:
    second = Up.start(serving.root, deployment("stage"))
    assert second.end() == Exit.BAD_CONFIGURATION
    assert f"`bireme up` of demo runs already as process {serving.process.pid}" in second.err()
    assert serving.states() == ["Serving"]


def test_a_run_after_a_killed_one_starts_clean(start: Start) -> None:
    first = start(deployment("stage"))
    first.until(lambda: first.states() == ["Serving"])
    first.signal(signal.SIGKILL)
    first.process.wait()
    second = Up.start(first.root, deployment("stage"))
    try:
        second.until(lambda: second.states() == ["Serving"] and second.content()["local"]["pid"] == second.process.pid)
    finally:
        second.close()


def test_what_was_done_and_why_is_in_the_log_of_up(serving: Up) -> None:
    text = Path(serving.directory / "logs" / "up.log").read_text()
    assert f"runs as process {serving.pod(0)['pid']}" in text


def test_a_question_is_answered_on_standard_output_and_then_everything_stops(start: Start) -> None:
    up = start(deployment("stage"), "What is the capital of France?", "The capital is Paris.")
    assert up.end() == 0
    assert up.out() == "The capital is Paris. \n"
    assert "everything has stopped" in up.err()


@pytest.mark.parametrize(("answer", "told"), [("", "answered 503"), ("broken", "the answer broke off")])
def test_a_question_without_an_answer_ends_with_70_and_the_reason(start: Start, answer: str, told: str) -> None:
    up = start(deployment("stage"), "What is the capital of France?", answer)
    assert up.end() == Exit.INTERNAL
    assert told in up.err()
