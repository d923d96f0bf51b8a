"""Spares on a real control plane: they stand by under no group's name, and become the stage that is lost."""

import json
from typing import Any

import pytest

from bireme.names import Label
from tests.controlplane.polling import eventually
from tests.fleet.fleet import Fleet
from tests.fleet.node import CLIQUE
from tests.operator.conftest import StartOperator
from tests.operator.deployments import Deployments, label
from tests.operator.stage_kubelet import StageKubelet
from tests.operator.test_gangs import NEAR, cliques, stages


def uids(pods: list[dict[str, Any]]) -> set[str]:
    return {pod["metadata"]["uid"] for pod in pods}


@pytest.mark.timeout(240, func_only=True)
def test_a_lost_stage_and_then_a_lost_leader_are_taken_over_by_spares(
    deployments: Deployments, kubelet: StageKubelet, start_operator: StartOperator
) -> None:
    operator = start_operator("first")
    deployments.create(replicas=1, stages=2, spares=1)
    deployments.await_condition("Ready")
    eventually(lambda: len(kubelet.started) == 3)
    (spare,) = deployments.spares()
    assert {str(Label.GROUP_INDEX), str(Label.INCARNATION)}.isdisjoint(spare["metadata"]["labels"])
    before = deployments.living()

    for stage in (1, 0):
        spares = eventually(lambda: uids(deployments.spares()))
        lost = deployments.living()[0, stage]
        deployments.delete_pod(lost)

        def taken_over(place: tuple[int, int] = (0, stage), by: set[str] = spares) -> bool:
            return deployments.uids().get(place) in by

        eventually(taken_over)
        deployments.await_condition("Ready")
        eventually(lambda: deployments.get()["status"]["groups"][0]["state"] == "Serving")
        assert deployments.incarnation(0, stage) == "2"

    after = deployments.living()
    assert label(after[0, 0], Label.ROLE) == "leader"
    assert after[0, 1]["metadata"]["uid"] == next(iter(uids([spare])))
    assert uids(list(before.values())).isdisjoint(uids(list(after.values())))
    told = kubelet.state_dir(after[0, 1]) / "leader"
    now = after[0, 0]["status"]["podIP"]
    eventually(lambda: told.exists() and json.loads(told.read_bytes())["address"] == now)
    eventually(lambda: len(deployments.spares()) == 1 and len(kubelet.started) == 5)

    operator.kill()
    deployments.free_lease()
    start_operator("second")
    deployments.change(replicas=2)
    deployments.await_condition("Ready")
    assert deployments.uids().items() >= {place: pod["metadata"]["uid"] for place, pod in after.items()}.items()
    deployments.change(spares=0)
    eventually(lambda: not deployments.spares())
    assert len(kubelet.started) == len(set(kubelet.started)) == 7


def test_where_groups_are_placed_whole_a_spare_stands_by_in_the_domain_of_each(
    fleet: Fleet, deployments: Deployments, start_operator: StartOperator
) -> None:
    start_operator(cluster=True)
    alone = NEAR | {"exclusive": "Domain"}
    deployments.create(replicas=2, stages=2, spares=2, template=stages(4), placement=alone)
    deployments.await_condition("Ready")

    def standing_by() -> dict[str, str]:
        """The clique of each spare that has a node, by uid."""
        bound = [pod for pod in deployments.spares() if "nodeName" in pod["spec"]]
        labels = {pod["metadata"]["uid"]: fleet.node(pod["spec"]["nodeName"]).object()["metadata"] for pod in bound}
        return {uid: node["labels"][CLIQUE] for uid, node in labels.items()}

    eventually(lambda: sorted(standing_by().values()) == ["clique-0", "clique-1"])
    eventually(lambda: all(is_ready(pod) for pod in deployments.spares()))
    spares, homes = standing_by(), cliques(fleet, deployments)
    deployments.delete_pod(deployments.living()[0, 1])
    eventually(lambda: deployments.uids().get((0, 1)) in spares)
    deployments.await_condition("Ready")
    assert {spares[deployments.uids()[0, 1]]} == homes[0], "it was the one in the group's own domain"
    eventually(lambda: sorted(standing_by().values()) == ["clique-0", "clique-1"])


def is_ready(pod: dict[str, Any]) -> bool:
    return any(one["type"] == "Ready" and one["status"] == "True" for one in pod["status"].get("conditions", []))
