"""Nodes die, freeze and lose their way: what is dead is replaced within seconds, what lives is left alone."""

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from bireme.cli import kubectl
from bireme.names import Exit
from tests.controlplane.polling import eventually
from tests.controlplane.stopwatch import Stopwatch
from tests.fleet.fixtures import PYTHON_IMAGE
from tests.fleet.fleet import Fleet
from tests.operator.conftest import StartOperator
from tests.operator.deployments import Deployments

_STAGE = str(Path(__file__).parents[1] / "local" / "scripted_stage.py")
FAST = {"nodeLostAfterSeconds": 5}
SOON_S = 8
"""After that there is a pod in the place of a lost one: 3 s of silence, and 3 s in which a Lease of 8 s stands still."""


@pytest.fixture
def two_groups(fleet: Fleet, deployments: Deployments, start_operator: StartOperator) -> Deployments:
    """Two groups of one stage, each on a node of its own, ready."""
    start_operator(cluster=True)
    deployments.create(replicas=2, stages=1, template=template(), recovery=FAST)
    deployments.await_condition("Ready")
    return deployments


def template() -> dict[str, object]:
    """Stages that take a node each."""
    worker = {
        "name": "worker",
        "image": PYTHON_IMAGE,
        "command": [sys.executable, _STAGE],
        "env": [{"name": "SCRIPT", "value": "stage"}],
        "resources": {"limits": {"nvidia.com/gpu": "8"}},
    }
    return {"spec": {"containers": [worker]}}


def state(fleet: Fleet, deployments: Deployments, place: tuple[int, int]) -> Path:
    """Where the process of a stage takes its orders."""
    name = deployments.living()[place]["metadata"]["name"]
    return fleet.sandbox(deployments.namespace, name).volumes["state"]


def test_a_drained_node_gives_its_group_away_first_and_then_lets_go(fleet: Fleet, two_groups: Deployments) -> None:
    before = two_groups.living()
    two_groups.await_budgets(2)
    node = before[0, 0]["spec"]["nodeName"]
    drain = ("drain", node, "--delete-emptydir-data", "--timeout=60s")
    with ThreadPoolExecutor(1) as pool:
        draining = pool.submit(fleet.plane.kubectl, *drain)

        def moved() -> bool:
            assert two_groups.is_replaced_first(0), "the successor serves before the group goes"
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


def test_drain_node_shows_how_a_group_moves_and_ends_when_none_is_left(
    fleet: Fleet, two_groups: Deployments, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(fleet.plane.kubeconfig))
    node = two_groups.living()[0, 0]["spec"]["nodeName"]
    two_groups.change(disruption={"onCordon": "Ignore"})
    words = [node, "-n", two_groups.namespace]
    assert kubectl.main(["drain-node", *words]) == Exit.BAD_CONFIGURATION
    assert "onCordon: Ignore" in capsys.readouterr().err
    assert "unschedulable" not in fleet.plane.api.get(f"/api/v1/nodes/{node}").json()["spec"]
    two_groups.change(disruption={"onCordon": "Move"})
    assert kubectl.main(["drain-node", *words]) == 0
    said = capsys.readouterr().out
    assert f"{node} is cordoned" in said
    assert f"{two_groups.namespace}/demo  group 0  one  " in said
    assert f"no group is left on {node}" in said
    assert node not in {pod["spec"].get("nodeName") for pod in two_groups.pods()}
    assert kubectl.main(["undrain-node", *words]) == 0
    assert "unschedulable" not in fleet.plane.api.get(f"/api/v1/nodes/{node}").json()["spec"]


def test_the_pod_of_a_frozen_node_is_replaced(fleet: Fleet, two_groups: Deployments) -> None:
    frozen = fleet.node(two_groups.living()[0, 0]["spec"]["nodeName"])
    frozen.freeze()
    with Stopwatch() as since:
        eventually(lambda: two_groups.incarnation(0, 0) == "2")
    since.assert_made(two_groups.living()[0, 0], SOON_S)
    two_groups.await_condition("Ready")
    frozen.thaw()
    eventually(lambda: len(two_groups.pods()) == 2)


def test_a_node_that_only_loses_the_api_server_or_its_kubelet_keeps_its_pods(
    fleet: Fleet, two_groups: Deployments
) -> None:
    before = two_groups.uids()
    node = fleet.node(two_groups.living()[0, 0]["spec"]["nodeName"])
    for lose, mend in ((node.partition_from_api, node.heal), (node.stop_kubelet, node.start_kubelet)):
        lose()
        eventually(lambda: ("node.kubernetes.io/unreachable", "NoExecute") in node.taints())
        two_groups.await_condition("Ready")
        assert two_groups.uids() == before, "its worker serves as before"
        mend()
        eventually(lambda: ("node.kubernetes.io/unreachable", "NoExecute") not in node.taints())
        assert two_groups.uids() == before


def test_a_node_that_is_long_cut_off_is_to_be_left_and_where_there_is_no_room_that_is_all_until_it_is_back(
    fleet: Fleet, deployments: Deployments, start_operator: StartOperator
) -> None:
    for other in fleet.nodes[2:]:
        other.set_gpus(0)
    start_operator(cluster=True, arguments=["--silent-node-seconds=1"])
    deployments.create(replicas=2, stages=1, template=template())
    deployments.await_condition("Ready")
    before = deployments.uids()
    node = fleet.node(deployments.living()[0, 0]["spec"]["nodeName"])
    node.partition_from_api()
    leaves = f"is to leave {node.name} (its kubelet has been silent for 1 s and more)"
    no_room = f"group 0 {leaves}, and there is no room for its successor"
    eventually(lambda: no_room in deployments.condition("Scheduled").get("message", ""))
    assert before.items() <= deployments.uids().items(), "what serves there serves on"
    eventually(lambda: any(f"group 0: it {leaves}" in note for note in deployments.events("GroupMoves")))
    node.heal()
    eventually(lambda: deployments.uids().keys() == before.keys())
    deployments.await_condition("Ready")
    assert deployments.uids() == before


def test_a_node_that_only_its_peers_lose_keeps_its_pods_while_a_dead_one_beside_it_does_not(
    fleet: Fleet, two_groups: Deployments
) -> None:
    before = two_groups.living()
    deaf = state(fleet, two_groups, (0, 0)) / "deaf"
    deaf.touch()
    fleet.node(before[1, 0]["spec"]["nodeName"]).kill()
    eventually(lambda: two_groups.incarnation(1, 0) == "2")
    eventually(lambda: two_groups.get()["status"]["groups"][0]["reason"] == "WorkerUnreachable")
    assert two_groups.uids()[0, 0] == before[0, 0]["metadata"]["uid"], "its kubelet renews its Lease"
    deaf.unlink()
    two_groups.await_condition("Ready")
    assert two_groups.uids()[0, 0] == before[0, 0]["metadata"]["uid"]


def test_a_node_that_its_peers_have_lost_for_long_is_left_for_others_without_a_word_from_its_kubelet(
    fleet: Fleet, deployments: Deployments, start_operator: StartOperator
) -> None:
    start_operator(cluster=True, arguments=["--silent-node-seconds=1"])
    deployments.create(replicas=1, stages=2, template=template())
    deployments.await_condition("Ready")
    before = deployments.living()
    (state(fleet, deployments, (0, 0)) / "state").write_text("Recovering")
    (state(fleet, deployments, (0, 0)) / "unheard").write_text("1")
    node = before[0, 1]["spec"]["nodeName"]
    leaves = f"is to leave {node} (its group has not heard it for 1 s and more)"
    eventually(lambda: any(f"group 0: it {leaves}" in note for note in deployments.events("GroupMoves")))
    eventually(lambda: {group for group, _ in deployments.living()} == {1})
    deployments.await_condition("Ready")
    assert node not in {pod["spec"]["nodeName"] for pod in deployments.living().values()}


def test_a_node_that_nobody_reaches_is_replaced_and_what_still_runs_there_ends_when_it_returns(
    fleet: Fleet, two_groups: Deployments
) -> None:
    before = two_groups.living()
    node = fleet.node(before[0, 0]["spec"]["nodeName"])
    old = fleet.sandbox(two_groups.namespace, before[0, 0]["metadata"]["name"])
    deaf = state(fleet, two_groups, (0, 0)) / "deaf"
    node.partition_from_api()
    deaf.touch()
    with Stopwatch() as since:
        eventually(lambda: two_groups.incarnation(0, 0) == "2")
    since.assert_made(two_groups.living()[0, 0], SOON_S)
    two_groups.await_condition("Ready")
    assert two_groups.uids()[1, 0] == before[1, 0]["metadata"]["uid"]
    assert old.pids(), "it does not know"
    deaf.unlink()
    node.heal()
    eventually(lambda: len(two_groups.pods()) == 2 and not old.pids())
    two_groups.await_condition("Ready")
    assert two_groups.incarnation(0, 0) == "2"


def test_a_lost_member_and_then_a_lost_leader_are_replaced_alone_and_the_member_learns_of_its_leader(
    fleet: Fleet, deployments: Deployments, start_operator: StartOperator
) -> None:
    start_operator(cluster=True)
    deployments.create(replicas=1, stages=2, template=template(), recovery=FAST)
    deployments.await_condition("Ready")
    first = deployments.living()
    frozen = fleet.node(first[0, 1]["spec"]["nodeName"])
    frozen.freeze()
    unheard = state(fleet, deployments, (0, 0)) / "unheard"
    unheard.write_text("1")
    eventually(lambda: deployments.incarnation(0, 1) == "2")
    unheard.unlink()
    deployments.await_condition("Ready")
    frozen.thaw()
    eventually(lambda: len(deployments.pods()) == 2)
    second = deployments.living()
    assert second[0, 0]["metadata"]["uid"] == first[0, 0]["metadata"]["uid"]
    fleet.node(second[0, 0]["spec"]["nodeName"]).kill()
    eventually(lambda: deployments.incarnation(0, 0) == "2")
    deployments.await_condition("Ready")
    third = deployments.living()
    assert third[0, 1]["metadata"]["uid"] == second[0, 1]["metadata"]["uid"]
    told = state(fleet, deployments, (0, 1)) / "leader"
    now = {"address": third[0, 0]["status"]["podIP"], "incarnation": 2}
    eventually(lambda: told.exists() and json.loads(told.read_bytes()) == now)
