"""What is lost is made anew, once, with what its mode takes along, and not for ever: T2 to T5 of other operators' users."""

import signal
import sys
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from bireme.names import Annotation, Label
from tests.controlplane.polling import eventually
from tests.fleet.fixtures import PYTHON_IMAGE
from tests.fleet.fleet import Fleet
from tests.operator.conftest import StartOperator
from tests.operator.deployments import Deployments, label
from tests.operator.stage_kubelet import StageKubelet
from tests.operator.test_node_death import spread

MODES = ["InPlace", "Recreate"]
TIRELESS = {"restartBudget": {"limit": 1000}, "backoff": {"initialSeconds": 1, "maxSeconds": 1}}

Place = tuple[int, int]

GROUPS, STAGES = 10, 2
ROUNDS = ("there", "paused", "there", "away", "paused")
"""Where the operator is while one worker of each group is deleted: 50 of them."""


def replaced(deployments: Deployments, before: dict[Place, str], lost: set[Place]) -> bool:
    """Whether exactly what was lost has been made anew; nothing else may be at any time."""
    now = deployments.uids()
    changed = {place for place in before if now.get(place) != before[place]}
    assert changed <= lost
    return changed == lost and lost <= now.keys() and len(deployments.pods()) == len(before)


@pytest.mark.parametrize("mode", MODES)
def test_t2_fifty_workers_that_are_deleted_whatever_the_operator_does_then_are_replaced_once_each(
    mode: str, deployments: Deployments, kubelet: StageKubelet, start_operator: StartOperator
) -> None:
    operator = start_operator(lease_seconds=300)  # it is paused, and shall not end of it
    deployments.create(replicas=GROUPS, stages=STAGES, recovery={"mode": mode, **TIRELESS})
    deployments.await_condition("Ready")
    version, taken = deployments.version(), {0, 1} if mode == "Recreate" else {1}
    lost = {(group, stage) for group in range(GROUPS) for stage in taken}
    for number, where in enumerate(ROUNDS, start=1):
        before = deployments.living()
        if where == "paused":
            operator.process.send_signal(signal.SIGSTOP)
        if where == "away":
            operator.kill()
        for group in range(GROUPS):
            deployments.delete_pod(before[group, 1])
        if where == "paused":
            operator.process.send_signal(signal.SIGCONT)
        if where == "away":
            operator = start_operator(lease_seconds=300)
        uids = {place: pod["metadata"]["uid"] for place, pod in before.items()}
        eventually(lambda uids=uids: replaced(deployments, uids, lost))  # type: ignore[misc]
        made = GROUPS * (STAGES + number * len(taken))
        eventually(lambda made=made: len(kubelet.started) == made)  # type: ignore[misc]
        deployments.await_condition("Ready")
    assert len(deployments.made_since(version)) == len(ROUNDS) * len(lost), "exactly once"


@pytest.mark.usefixtures("control_plane")  # which has a garbage collector
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("propagation", ["Background", "Foreground"])
def test_t3_a_leader_that_is_deleted_is_made_anew_once(
    propagation: str, mode: str, deployments: Deployments, kubelet: StageKubelet, start_operator: StartOperator
) -> None:
    start_operator()
    deployments.create(replicas=2, stages=2, recovery={"mode": mode, **TIRELESS})
    deployments.await_condition("Ready")
    version, before = deployments.version(), deployments.uids()
    lost = {(0, 0), (0, 1)} if mode == "Recreate" else {(0, 0)}
    deployments.delete_pod(deployments.living()[0, 0], grace=30, propagation=propagation)
    eventually(lambda: replaced(deployments, before, lost))
    deployments.change(recovery={"restartBudget": {"limit": 99}})  # asks for one more judgement
    deployments.await_condition("Ready")
    assert len(deployments.made_since(version)) == len(lost), "one recreate, not two"


@pytest.mark.parametrize("mode", MODES)
def test_t5_an_evicted_pod_is_replaced_under_another_name_with_what_its_mode_takes_along(
    mode: str, deployments: Deployments, kubelet: StageKubelet, start_operator: StartOperator
) -> None:
    start_operator()
    deployments.create(replicas=2, stages=2, recovery={"mode": mode, **TIRELESS})
    deployments.await_condition("Ready")
    version, names = deployments.version(), {pod["metadata"]["name"] for pod in deployments.pods()}
    for stage in (1, 0):
        before = deployments.uids()
        deployments.evicted(deployments.living()[0, stage])
        lost = {(0, 0), (0, 1)} if mode == "Recreate" else {(0, stage)}
        eventually(lambda before=before, lost=lost: replaced(deployments, before, lost))  # type: ignore[misc]
        deployments.await_condition("Ready")
    made = [pod["metadata"]["name"] for pod in deployments.made_since(version)]
    assert len(made) == 2 * len(lost), "exactly once"
    assert len({*names, *made}) == len(names) + len(made), "no name is used twice"


def test_t4_a_crash_loop_backs_off_and_ends_and_a_restart_resumes_it(
    deployments: Deployments, kubelet: StageKubelet, start_operator: StartOperator
) -> None:
    start_operator()
    recovery = {"restartBudget": {"limit": 1}, "backoff": {"initialSeconds": 1, "maxSeconds": 2}}
    deployments.create(replicas=2, stages=1, recovery=recovery)
    deployments.await_condition("Ready")
    other = deployments.uids()[1, 0]
    kubelet.crash(deployments.living()[0, 0], 1, "no route to host", 2, waiting=True)
    eventually(lambda: deployments.get()["status"]["groups"][0]["state"] == "Failed")
    group = deployments.get()["status"]["groups"][0]
    assert group["reason"] == "BudgetExhausted"
    assert "no route to host" in group["message"]
    assert deployments.uids()[1, 0] == other
    deployments.annotate("bireme.dev/restart", "now")
    deployments.await_condition("Ready")
    assert other not in deployments.uids().values(), "the groups are made anew, one after the other"


FAILS = """
import os, pathlib, sys
if pathlib.Path(os.environ["BROKEN"]).exists() and (os.environ["GROUP"], os.environ["STAGE"]) == ("0", "1"):
    sys.exit("no route to host")
"""
"""Ends with 1 in one stage while a file is there."""
WAITS_S = {"InPlace": [0, 8], "Recreate": [0, 1, 2, 4]}
"""Between the makings of that stage. Mode InPlace leaves the first three restarts of each to its kubelet."""
BUDGET = {"InPlace": 8, "Recreate": 4}


def with_init_container(broken: Path) -> dict[str, Any]:
    """Stages that begin with a check, which needs a network."""
    template = spread(1)
    fields = {"GROUP": Label.GROUP_INDEX, "STAGE": Label.STAGE}
    env: list[dict[str, Any]] = [
        {"name": name, "valueFrom": {"fieldRef": {"fieldPath": f"metadata.labels['{of}']"}}}
        for name, of in fields.items()
    ]
    check = {
        "name": "check",
        "image": PYTHON_IMAGE,
        "command": [sys.executable, "-c", FAILS],
        "env": [*env, {"name": "BROKEN", "value": str(broken)}],
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    template["spec"]["initContainers"] = [check]
    return template


@pytest.mark.parametrize("mode", MODES)
def test_t4_an_init_container_that_always_fails_is_given_up_after_longer_and_longer_waits(
    mode: str, fleet: Fleet, deployments: Deployments, start_operator: StartOperator, tmp_path: Path
) -> None:
    broken = tmp_path / "broken"
    start_operator()
    recovery = {"restartBudget": {"limit": BUDGET[mode]}, "backoff": {"initialSeconds": 1, "maxSeconds": 15}}
    template = with_init_container(broken)
    deployments.create(replicas=2, stages=2, template=template, recovery={"mode": mode, **recovery})
    deployments.await_condition("Ready")
    version, before = deployments.version(), deployments.living()
    broken.touch()
    deployments.delete_pod(before[0, 1])
    told = eventually(lambda: failed(deployments, 0))
    assert told["reason"] == "BudgetExhausted"
    assert "stage 1: init container check: no route to host (exit code 1)" in told["message"]
    made = [pod for pod in [before[0, 1], *deployments.made_since(version)] if label(pod, Label.STAGE) == "1"]
    assert [label(pod, Label.INCARNATION) for pod in made] == [str(n) for n in range(1, len(WAITS_S[mode]) + 2)]
    times = [datetime.fromisoformat(pod["metadata"]["creationTimestamp"]) for pod in made]
    waits = [(later - earlier).total_seconds() for earlier, later in pairwise(times)]
    assert all(waited >= due for waited, due in zip(waits, WAITS_S[mode], strict=True)), waits
    other = {place: pod["metadata"]["uid"] for place, pod in before.items() if place[0] == 1}
    assert other.items() <= deployments.uids().items(), "the other group is left alone"
    restarts = [group["restarts"] for group in deployments.get()["status"]["groups"]]
    assert restarts[0] > BUDGET[mode]
    assert restarts[1] == 0
    broken.unlink()
    deployments.annotate(Annotation.RESUME, "now")
    deployments.await_condition("Ready")
    assert other.items() <= deployments.uids().items(), "to resume is to make the failed group anew, and no other"


def failed(deployments: Deployments, group: int) -> dict[str, Any] | None:
    """What is said of a group that was given up, None while it is not."""
    found: dict[str, Any] = deployments.get()["status"]["groups"][group]
    return found if found["state"] == "Failed" else None
