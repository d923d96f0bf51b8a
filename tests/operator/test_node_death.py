"""T1: a node dies, and what it had comes back elsewhere; nodes that only ask for leave get it.

When a pod follows a lost one: a closed connection is seen at once, silence after 3 s; then the node's Lease must stand
still for max(1.5 × leaseDuration / 4, `nodeLostAfterSeconds` − 4), read each second. The nodes here have 8 s Leases.
"""

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.controlplane.polling import eventually
from tests.controlplane.stopwatch import Stopwatch
from tests.fleet.fixtures import PYTHON_IMAGE
from tests.fleet.fleet import Fleet
from tests.operator.conftest import StartOperator
from tests.operator.deployments import Deployments
from tests.operator.test_fleet import APART

_STAGE = str(Path(__file__).parents[1] / "local" / "scripted_stage.py")


def spread(gpus: int) -> dict[str, Any]:
    """Stages that go to different nodes while there are enough."""
    worker = {
        "name": "worker",
        "image": PYTHON_IMAGE,
        "command": [sys.executable, _STAGE],
        "env": [{"name": "SCRIPT", "value": "stage"}],
        "resources": {"limits": {"nvidia.com/gpu": str(gpus)}},
    }
    apart = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "podAffinityTerm": APART}]}
    return {"spec": {"containers": [worker], "affinity": {"podAntiAffinity": apart}}}


@pytest.mark.parametrize(
    ("mode", "settings", "within_s"), [("InPlace", {"nodeLostAfterSeconds": 5}, 8), ("Recreate", {}, 20)]
)
def test_t1_what_a_dead_node_had_is_replaced_once_and_soon_with_what_its_mode_takes_along(
    mode: str,
    settings: dict[str, int],
    within_s: int,
    *,
    fleet: Fleet,
    deployments: Deployments,
    start_operator: StartOperator,
) -> None:
    start_operator(cluster=True)
    deployments.create(replicas=2, stages=2, template=spread(4), recovery={"mode": mode, **settings})
    deployments.await_condition("Ready")
    before = deployments.living()
    dead = fleet.node(before[0, 0]["spec"]["nodeName"])
    assert [place for place, pod in before.items() if pod["spec"]["nodeName"] == dead.name] == [(0, 0)]
    dead.kill()
    lost = {(0, 0)} if mode == "InPlace" else {(0, 0), (0, 1)}
    with Stopwatch() as since:
        eventually(lambda: all(deployments.incarnation(*place) == "2" for place in lost))
    deployments.await_condition("Ready")
    after = deployments.living()
    for place in lost:
        since.assert_made(after[place], within_s)
    assert {place for place in before if after[place]["metadata"]["uid"] != before[place]["metadata"]["uid"]} == lost
    assert dead.name not in {pod["spec"]["nodeName"] for pod in after.values()}
    dead.boot()
    eventually(lambda: len(deployments.pods()) == 4)
    assert deployments.uids() == {place: pod["metadata"]["uid"] for place, pod in after.items()}, "exactly once"


def test_a_taint_is_the_wish_to_leave_and_a_budget_of_somebody_else_is_told_of(
    fleet: Fleet, deployments: Deployments, start_operator: StartOperator
) -> None:
    other = {"metadata": {"name": "careful"}, "spec": {"minAvailable": 1, "selector": {}}}
    budgets = f"/apis/policy/v1/namespaces/{deployments.namespace}/poddisruptionbudgets"
    fleet.plane.api.post(budgets, json=other).raise_for_status()
    start_operator(cluster=True)
    deployments.create(replicas=2, stages=1, template=spread(8))
    deployments.await_condition("Ready")

    def told() -> list[str] | None:
        groups = deployments.get()["status"]["groups"]
        conflict = {group["reason"] for group in groups} == {"ConflictingPDB"}
        return [group["message"] for group in groups] if conflict else None

    assert all("PodDisruptionBudget careful" in message for message in eventually(told))
    before = deployments.living()
    node = fleet.node(before[0, 0]["spec"]["nodeName"])
    node.taint("example.com/reclaimed", "NoSchedule")

    def moved() -> bool:
        assert deployments.is_replaced_first(0), "the successor serves before the group goes"
        return node.name not in {pod["spec"].get("nodeName") for pod in deployments.pods()}

    eventually(moved)
    deployments.await_condition("Ready")
    assert deployments.uids()[1, 0] == before[1, 0]["metadata"]["uid"]
