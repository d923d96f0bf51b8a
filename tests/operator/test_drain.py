"""Nodes are drained: groups move whole and without a failed request, or give way as far as the budget has it."""

from pathlib import Path

import pytest

from bireme.names import Label
from tests.controlplane.polling import eventually
from tests.fleet.fixtures import WORKER_IMAGE
from tests.fleet.fleet import Fleet
from tests.operator.conftest import StartOperator
from tests.operator.deployments import Deployments
from tests.operator.test_fleet import APART, QUESTION, router, serve
from tests.operator.test_node_death import spread
from tests.support.load import Load


def node_of_router(fleet: Fleet, namespace: str) -> str:
    query = {"labelSelector": f"{Label.ROLE}=router"}
    (pod,) = fleet.plane.api.get(f"/api/v1/namespaces/{namespace}/pods", params=query).json()["items"]
    return str(pod["spec"]["nodeName"])


@pytest.mark.system
@pytest.mark.timeout(300, func_only=True)
def test_a_node_is_drained_of_half_a_group_and_no_request_fails(
    fleet: Fleet, deployments: Deployments, start_operator: StartOperator, smollm2_dir: Path
) -> None:
    start_operator("operator", worker_image=WORKER_IMAGE, cluster=True)
    spread = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "podAffinityTerm": APART}]}
    serve(deployments, smollm2_dir, affinity={"podAntiAffinity": spread})
    deployments.await_condition("Ready")
    url = router(fleet.plane, deployments.namespace)
    before = deployments.living()
    homes = {pod["spec"]["nodeName"] for pod in before.values()}
    assert len(homes) == 2
    node = min(homes - {node_of_router(fleet, deployments.namespace)})
    deployments.await_budgets(1)
    with Load(url, QUESTION) as load:
        eventually(lambda: load.answered > 2)
        drained = fleet.plane.kubectl("drain", node, "--delete-emptydir-data", "--timeout=240s")
        assert drained.returncode == 0, drained.stderr
        answered = load.answered
        eventually(lambda: load.answered > answered + 2)
    assert not load.failed
    assert "violate the pod's disruption budget" in drained.stderr
    after = deployments.living()
    assert len(after) == 2
    assert not set(before) & set(after), "the whole group has moved, under another index"
    assert node not in {pod["spec"]["nodeName"] for pod in after.values()}


def test_a_full_cluster_lets_go_of_as_many_groups_as_the_budget_has(
    fleet: Fleet, deployments: Deployments, start_operator: StartOperator
) -> None:
    start_operator(cluster=True)
    deployments.create(replicas=4, stages=1, template=spread(8))
    deployments.await_condition("Ready")
    before = deployments.living()
    first, second = (fleet.node(before[group, 0]["spec"]["nodeName"]) for group in (0, 1))
    deployments.await_budgets(4)
    first.cordon()
    drained = fleet.plane.kubectl("drain", second.name, "--delete-emptydir-data", "--timeout=120s")
    assert drained.returncode == 0, drained.stderr
    eventually(lambda: "no room for its successor" in deployments.condition("Scheduled").get("message", ""))
    kept = {place: uid for place, uid in deployments.uids().items() if place[0] in {0, 2, 3}}
    assert kept == {place: pod["metadata"]["uid"] for place, pod in before.items() if place[0] != 1}
    eventually(lambda: deployments.get()["status"]["readyReplicas"] == 3)  # the budget is one group
    second.uncordon()
    first.uncordon()
    deployments.await_condition("Ready")
    assert kept.items() <= deployments.uids().items()
