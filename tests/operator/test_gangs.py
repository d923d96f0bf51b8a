"""Groups are placed whole or not at all: by our own gates, by the native scheduler; T10 with a cluster that is full."""

import sys
from pathlib import Path
from typing import Any

from bireme.names import Label
from tests.controlplane.polling import eventually
from tests.fleet.fixtures import PYTHON_IMAGE
from tests.fleet.fleet import Fleet
from tests.fleet.node import CLIQUE, GPU
from tests.operator.conftest import StartOperator
from tests.operator.deployments import Deployments, label

_STAGE = str(Path(__file__).parents[1] / "local" / "scripted_stage.py")
NEAR = {"topology": [{"key": CLIQUE}]}


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
