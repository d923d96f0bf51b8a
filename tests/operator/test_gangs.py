"""Groups are placed whole or not at all: by our own gates, by the native scheduler; T10 with a cluster that is full."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bireme.names import Label
from bireme_operator.plan.places import HOSTNAME
from tests.controlplane.arguments import Settings
from tests.controlplane.cluster import ControlPlane
from tests.controlplane.polling import eventually
from tests.controlplane.programs import Program
from tests.controlplane.proxy import ApiProxy, Fault, fair
from tests.fleet.fixtures import PYTHON_IMAGE
from tests.fleet.fleet import Fleet
from tests.fleet.node import CLIQUE, GPU
from tests.operator.conftest import StartOperator
from tests.operator.deployments import Deployments, label

_STAGE = str(Path(__file__).parents[1] / "local" / "scripted_stage.py")
NEAR = {"topology": [{"key": CLIQUE}]}


@pytest.fixture
def proxy(crd: ControlPlane) -> Iterator[ApiProxy]:
    """Between the operator and the API server."""
    with ApiProxy(crd) as proxy:
        yield proxy


def stages(gpus: int) -> dict[str, Any]:
    worker = {
        "name": "worker",
        "image": PYTHON_IMAGE,
        "command": [sys.executable, _STAGE],
        "env": [{"name": "SCRIPT", "value": "stage"}],
        "resources": {"limits": {GPU: str(gpus)}},
    }
    return {"spec": {"containers": [worker]}}


def cliques(fleet: Fleet, deployments: Deployments) -> dict[int, set[str]]:
    """The cliques in which each group has a stage."""
    found: dict[int, set[str]] = {}
    for (group, _), pod in deployments.living().items():
        if node := pod["spec"].get("nodeName"):
            found.setdefault(group, set()).add(fleet.node(node).object()["metadata"]["labels"][CLIQUE])
    return found


def waiting(deployments: Deployments, reason: str) -> dict[str, Any] | None:
    groups = deployments.get().get("status", {}).get("groups", [])
    return next((group for group in groups if group["reason"] == reason), None)


def test_a_group_that_fits_into_no_clique_waits_whole_and_is_let_go_when_it_does(
    fleet: Fleet, deployments: Deployments, start_operator: StartOperator
) -> None:
    fleet.nodes[0].set_gpus(0)
    start_operator(cluster=True)
    deployments.create(replicas=2, stages=2, template=stages(8), placement=NEAR)
    told = eventually(lambda: waiting(deployments, "NoCapacity"))
    assert f"no room in one domain of {CLIQUE} for 2 more stages of nvidia.com/gpu 8 each" in told["message"]
    eventually(lambda: deployments.get()["status"].get("readyReplicas") == 1)
    homes = cliques(fleet, deployments)
    assert list(homes.values()) == [{"clique-1"}], "half a gang holds no device"
    (first,) = homes  # both are made at once, and the first that is there takes the room
    assert deployments.await_condition("Scheduled", "False")["reason"] == "NoCapacity"
    fleet.nodes[0].set_gpus(8)
    deployments.await_condition("Ready")
    assert cliques(fleet, deployments) == {first: {"clique-1"}, 1 - first: {"clique-0"}}
    before = deployments.living()
    deployments.delete_pod(before[first, 1])
    eventually(lambda: deployments.incarnation(first, 1) == "2")
    deployments.await_condition("Ready")
    assert cliques(fleet, deployments)[first] == {"clique-1"}, "a stage comes back beside its peers"


def test_a_domain_belongs_to_one_group_where_that_is_wanted(
    fleet: Fleet, deployments: Deployments, start_operator: StartOperator
) -> None:
    start_operator(cluster=True)
    alone = NEAR | {"exclusive": "Domain"}
    deployments.create(replicas=3, stages=2, template=stages(2), placement=alone)
    eventually(lambda: waiting(deployments, "NoCapacity"))
    eventually(lambda: deployments.get()["status"].get("readyReplicas") == 2)
    homes = cliques(fleet, deployments)
    assert sorted(map(sorted, homes.values())) == [["clique-0"], ["clique-1"]]
    deployments.change(replicas=2)
    deployments.await_condition("Ready")


def test_the_native_scheduler_places_a_group_whole_and_its_recovery_too(
    fleet: Fleet, deployments: Deployments, start_operator: StartOperator
) -> None:
    for node in fleet.nodes[:3]:
        node.set_gpus(0)
    start_operator(cluster=True)
    deployments.create(replicas=1, stages=2, template=stages(8), placement={"scheduler": "Native"})
    eventually(lambda: waiting(deployments, "Unschedulable"))
    assert not any("nodeName" in pod["spec"] for pod in deployments.pods()), "half a gang holds no device"
    fleet.nodes[2].set_gpus(8)
    deployments.await_condition("Ready")
    deployments.delete_pod(deployments.living()[0, 1])
    eventually(lambda: deployments.incarnation(0, 0) == deployments.incarnation(0, 1) == "2")
    deployments.await_condition("Ready")


@pytest.fixture
def no_gangs(fleet: Fleet) -> Iterator[None]:
    """The scheduler knows no gangs, as in a cluster whose administrator has turned them on at the API server alone."""
    with fleet.plane.changed(Program.SCHEDULER, Settings(gangs=False)):
        yield


@pytest.mark.usefixtures("no_gangs")
def test_gates_places_the_groups_of_a_native_scheduler_that_ignores_gangs_until_it_is_asked_anew(
    fleet: Fleet, deployments: Deployments, start_operator: StartOperator
) -> None:
    for node in fleet.nodes[:3]:
        node.set_gpus(0)
    operator = start_operator(cluster=True)
    deployments.create(replicas=1, stages=2, template=stages(8), placement={"scheduler": "Native"})
    eventually(lambda: any("nodeName" in pod["spec"] for pod in deployments.pods()))  # half a gang holds a device
    deployments.await_event("NativeGangIgnored", "--feature-gates=GenericWorkload=true")
    eventually(lambda: waiting(deployments, "NoCapacity"))
    eventually(lambda: len(deployments.living()) == len(deployments.pods()) == 2)
    assert not any("nodeName" in pod["spec"] for pod in deployments.pods()), "it waits whole from now on"
    told = deployments.await_condition("Scheduled", "False")
    assert told["reason"] == "NoCapacity"
    assert "scheduling.k8s.io/v1beta1=true" in told["message"]
    operator.kill()
    deployments.free_lease()
    start_operator("next", cluster=True)
    fleet.nodes[2].set_gpus(8)
    deployments.await_condition("Ready")
    assert deployments.await_condition("Scheduled")["reason"] == "NativeGangIgnored"
    before = deployments.uids()
    deployments.delete_pod(deployments.living()[0, 1])
    eventually(lambda: len(uids := deployments.uids()) == 2 and not before.items() & uids.items())  # whole, as asked
    deployments.await_condition("Ready")
    assert len(deployments.events("NativeGangIgnored")) == 1, "it is remembered"


def test_gates_places_the_groups_where_the_server_has_no_gangs(
    fleet: Fleet, deployments: Deployments, start_operator: StartOperator, proxy: ApiProxy, tmp_path: Path
) -> None:
    proxy.judge = lambda asked: Fault(404) if asked.path.startswith("/apis/scheduling.k8s.io/v1beta1") else None
    start_operator(cluster=True, kubeconfig=proxy.kubeconfig(tmp_path))
    deployments.create(replicas=1, stages=2, template=stages(8), placement={"scheduler": "Native"})
    deployments.await_condition("Ready")
    told = deployments.await_condition("Scheduled")
    assert told["reason"] == "NativeGangIgnored"
    assert "it serves no PodGroups" in told["message"]
    assert all(HOSTNAME in pod["spec"]["nodeSelector"] for pod in deployments.pods()), "each was let go for one node"
    proxy.judge = fair
    deployments.annotate("bireme.dev/resume", "now")
    eventually(lambda: deployments.get()["status"].get("resume") == "now")
    assert deployments.await_condition("Scheduled")["reason"] == "None"
    deployments.delete_pod(deployments.living()[0, 1])
    eventually(lambda: sum("schedulingGroup" in pod["spec"] for pod in deployments.living().values()) == 2)
    deployments.await_condition("Ready")


def test_an_operator_that_sees_no_nodes_says_that_the_server_has_no_gangs_and_makes_no_half_of_one(
    deployments: Deployments, start_operator: StartOperator, proxy: ApiProxy, tmp_path: Path
) -> None:
    proxy.judge = lambda asked: Fault(404) if asked.path.startswith("/apis/scheduling.k8s.io/v1beta1") else None
    start_operator(kubeconfig=proxy.kubeconfig(tmp_path))
    deployments.create(replicas=1, stages=2, placement={"scheduler": "Native"})
    told = deployments.await_condition("Stalled")
    assert told["reason"] == "NativeGangIgnored"
    assert "--all-namespaces" in told["message"]
    assert not deployments.pods()


def test_t10_a_full_cluster_is_told_that_it_has_no_spare_capacity_and_rolls_once_it_may(
    fleet: Fleet, deployments: Deployments, start_operator: StartOperator
) -> None:
    start_operator(cluster=True)
    deployments.create(replicas=4, stages=1, template=stages(8), rollout={"drainTimeoutSeconds": 5, "maxSurge": 1})
    deployments.await_condition("Ready")
    deployments.change(engine={"maxRunningRequests": 3})
    eventually(lambda: "no spare capacity" in deployments.condition("Scheduled").get("message", ""))
    eventually(lambda: deployments.get()["status"]["readyReplicas"] == 4)
    deployments.change(rollout={"maxSurge": 0, "maxUnavailable": 1})
    deployments.await_condition("Ready")
    assert len({label(pod, Label.REVISION) for pod in deployments.living().values()}) == 1


_SERVER = """
import functools, http.server, os
files = functools.partial(http.server.SimpleHTTPRequestHandler, directory=os.environ["BIREME_MODEL_PATH"])
http.server.ThreadingHTTPServer((os.environ["BIREME_POD_IP"], 8000), files).serve_forever()
"""


def test_an_engine_that_is_not_ours_serves_an_image_by_its_own_probe_and_is_recreated_whole(
    fleet: Fleet, deployments: Deployments, start_operator: StartOperator, tmp_path: Path
) -> None:
    start_operator(cluster=True)
    source = {"image": {"reference": str(tmp_path), "path": "llama"}}  # the simulated kubelet's registry is the disk
    (tmp_path / "llama").mkdir()
    (tmp_path / "llama" / "config.json").write_text("{}")
    probe = {"httpGet": {"path": "/config.json", "port": 8000}, "periodSeconds": 1}
    worker = {"name": "worker", "image": PYTHON_IMAGE, "command": [sys.executable, "-c", _SERVER]}
    template = {"spec": {"containers": [worker | {"readinessProbe": probe}]}}
    engine = {"type": "Custom", "args": {"max-batch": "8"}}
    model = {"source": source, "revision": "one"}
    deployments.create(replicas=2, stages=2, template=template, engine=engine, model=model)
    deployments.await_condition("Ready")
    before = deployments.living()
    assert before[0, 0]["spec"]["containers"][0]["args"] == ["--max-batch=8"]
    names = {entry["name"] for entry in before[0, 1]["spec"]["containers"][0]["env"]}
    assert {"BIREME_STAGE", "BIREME_STAGES", "BIREME_LEADER_ADDRESS", "BIREME_TENSOR"} <= names
    deployments.delete_pod(before[0, 1])
    eventually(lambda: deployments.incarnation(0, 0) == deployments.incarnation(0, 1) == "2")
    deployments.await_condition("Ready")
    assert deployments.uids()[1, 0] == before[1, 0]["metadata"]["uid"]
    deployments.change(model={"revision": "two"})
    deployments.await_condition("Ready")
    assert {label(pod, Label.MODEL_REVISION) for pod in deployments.living().values()} == {"two"}
    services = fleet.plane.api.get(f"/api/v1/namespaces/{deployments.namespace}/services").json()["items"]
    endpoint = next(one for one in services if one["metadata"]["name"] == "demo-router")
    assert endpoint["spec"]["selector"][str(Label.STAGE)] == "0"
