"""Nodes die, freeze and lose their way: what is dead is replaced within seconds, what lives is left alone."""

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.controlplane.polling import eventually
from tests.fleet.fixtures import PYTHON_IMAGE
from tests.fleet.fleet import Fleet
from tests.operator.conftest import StartOperator
from tests.operator.deployments import Deployments

_STAGE = str(Path(__file__).parents[1] / "local" / "scripted_stage.py")
FAST = {"nodeLostAfterSeconds": 5}


@pytest.fixture
def two_groups(fleet: Fleet, deployments: Deployments, start_operator: StartOperator) -> Deployments:
    """Two groups of one stage, each on a node of its own, ready."""
    start_operator(cluster=True)
    worker = {
        "name": "worker",
        "image": PYTHON_IMAGE,
        "command": [sys.executable, _STAGE],
        "env": [{"name": "SCRIPT", "value": "stage"}],
        "resources": {"limits": {"nvidia.com/gpu": "8"}},
    }
    template = {"spec": {"containers": [worker]}}
    deployments.create(replicas=2, stages=1, template=template, recovery=FAST)
    deployments.await_condition("Ready")
    return deployments


def test_a_drained_node_gives_its_group_away_first_and_then_lets_go(fleet: Fleet, two_groups: Deployments) -> None:
    before = two_groups.living()
    node = before[0, 0]["spec"]["nodeName"]
    drain = ("drain", node, "--delete-emptydir-data", "--timeout=60s")
    with ThreadPoolExecutor(1) as pool:
        draining = pool.submit(fleet.plane.kubectl, *drain)

        def moved() -> bool:
            assert two_groups.get()["status"]["readyReplicas"] >= 2, "the successor serves before the group goes"
            return draining.done()

        eventually(moved)
    drained = draining.result()
    assert drained.returncode == 0, drained.stderr
    assert "violate the pod's disruption budget" in drained.stderr
    two_groups.await_condition("Ready")
    after = two_groups.living()
    assert len(after) == 2
    assert after[1, 0]["metadata"]["uid"] == before[1, 0]["metadata"]["uid"]
    assert node not in {pod["spec"]["nodeName"] for pod in after.values()}


def test_the_pod_of_a_dead_node_is_replaced_and_no_other(fleet: Fleet, two_groups: Deployments) -> None:
    before = two_groups.living()
    dead = fleet.node(before[0, 0]["spec"]["nodeName"])
    dead.kill()
    eventually(lambda: two_groups.incarnation(0, 0) == "2", within=20)
    two_groups.await_condition("Ready")
    after = two_groups.living()
    assert after[1, 0]["metadata"]["uid"] == before[1, 0]["metadata"]["uid"]
    assert after[0, 0]["spec"]["nodeName"] != dead.name
    dead.boot()
    eventually(lambda: len(two_groups.pods()) == 2)


def test_the_pod_of_a_frozen_node_is_replaced(fleet: Fleet, two_groups: Deployments) -> None:
    frozen = fleet.node(two_groups.living()[0, 0]["spec"]["nodeName"])
    frozen.freeze()
    eventually(lambda: two_groups.incarnation(0, 0) == "2", within=20)
    two_groups.await_condition("Ready")
    frozen.thaw()
    eventually(lambda: len(two_groups.pods()) == 2)


def test_a_node_that_only_loses_the_api_server_keeps_its_pods(fleet: Fleet, two_groups: Deployments) -> None:
    before = two_groups.uids()
    node = fleet.node(two_groups.living()[0, 0]["spec"]["nodeName"])
    node.partition_from_api()
    eventually(lambda: ("node.kubernetes.io/unreachable", "NoExecute") in node.taints())
    assert two_groups.uids() == before
    assert two_groups.condition("Ready")["status"] == "True", "its worker serves as before"
    node.heal()
    eventually(lambda: ("node.kubernetes.io/unreachable", "NoExecute") not in node.taints())
    assert two_groups.uids() == before
