"""A canary behind a real router: one that answers with errors goes back by itself, one that is as good is followed."""

import json
import sys
from pathlib import Path
from typing import Any

from bireme.names import Label
from tests.controlplane.polling import eventually
from tests.fleet.fixtures import PYTHON_IMAGE
from tests.fleet.fleet import Fleet
from tests.operator.conftest import StartOperator
from tests.operator.deployments import Deployments, label
from tests.operator.test_fleet import router
from tests.support.load import Load

_ROOT = str(Path(__file__).parents[2])
QUESTION = {"model": "demo", "messages": [{"role": "user", "content": "row"}], "max_tokens": 8}
CANARY = {"groups": 1, "analysisSeconds": 3, "minRequests": 20, "maxErrorPercent": 5, "maxSlowdownPercent": 1000}


def stages(answer: str, change: str = "") -> dict[str, Any]:
    """Pods that answer so; ``change`` makes another revision of them."""
    worker = {
        "name": "worker",
        "image": PYTHON_IMAGE,
        "command": [sys.executable, "-m", "tests.operator.serving_stage"],
        "env": [
            {"name": "PYTHONPATH", "value": _ROOT},
            {"name": "ANSWER", "value": answer},
            {"name": "CHANGE", "value": change},
        ],
    }
    return {"spec": {"containers": [worker]}}


def revisions(deployments: Deployments) -> list[str]:
    return sorted(label(pod, Label.REVISION) for pod in deployments.living().values())


def shares(fleet: Fleet, deployments: Deployments) -> dict[str, int]:
    """What the router is told about versions."""
    path = f"/api/v1/namespaces/{deployments.namespace}/configmaps/demo-routes"
    routes = json.loads(fleet.plane.api.get(path).raise_for_status().json()["data"]["routes.json"])
    return dict(routes.get("weights", {}))


def test_a_bad_canary_is_taken_back_alone_and_a_good_one_is_followed(
    fleet: Fleet, deployments: Deployments, start_operator: StartOperator
) -> None:
    start_operator(cluster=True)
    rollout = {"drainTimeoutSeconds": 5, "canary": CANARY}
    deployments.create(replicas=3, stages=1, template=stages("serve"), rollout=rollout)
    deployments.await_condition("Ready")
    (first,) = set(revisions(deployments))
    before = deployments.uids()
    with Load(router(fleet.plane, deployments.namespace, 3), QUESTION) as load:
        eventually(lambda: load.answered > 20)
        deployments.change(template=stages("fail"))
        told = deployments.await_condition("Stalled")
        assert told["reason"] == "RolledBack"
        assert "the canary failed too many requests (5 % are allowed)" in told["message"]
        eventually(lambda: revisions(deployments) == [first] * 3)
        kept = set(before.items()) & set(deployments.uids().items())
        assert len(kept) >= 2, "no other group was made anew"
        assert len(deployments.await_event("CanaryFailed")) == 1
        eventually(lambda: len(deployments.pods()) == 3)  # nobody is left to fail a request
        answered = load.answered
        eventually(lambda: load.answered > answered + 20)
        failed = len(load.failed)
        deployments.change(template=stages("serve", "another"), rollout={"canary": CANARY | {"analysisSeconds": 3600}})
        eventually(lambda: deployments.condition("Progressing").get("reason") == "CanaryAnalysis")
        eventually(lambda: sorted(shares(fleet, deployments).values()) == [1, 2])
        assert len(set(revisions(deployments))) == 2
        deployments.change(rollout={"canary": CANARY})  # the analysis is over
        deployments.await_condition("Ready")
        assert len(load.failed) == failed, "the good one costs no request"
    assert len(set(revisions(deployments))) == 1
    assert first not in revisions(deployments)
    (passed,) = deployments.await_event("CanaryPassed")
    assert "0.0 % failed (others: 0.0 %)" in passed
    eventually(lambda: shares(fleet, deployments) == {})
