"""The whole chain on simulated nodes: the scheduler binds, kubelets run real workers and a real router, a model answers."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import httpx
import pytest

from bireme.names import Label, Metric, Port
from tests.controlplane.cluster import ControlPlane
from tests.controlplane.polling import eventually
from tests.fleet.fixtures import WORKER_IMAGE
from tests.fleet.fleet import Fleet
from tests.operator.conftest import StartOperator
from tests.operator.deployments import Deployments, label

QUESTION = {
    "model": "demo",
    "messages": [{"role": "user", "content": "What is the capital of France?"}],
    "temperature": 0,
    "max_tokens": 12,
}


APART = {
    "labelSelector": {"matchLabels": {str(Label.DEPLOYMENT): "demo", "app.kubernetes.io/component": "worker"}},
    "topologyKey": "kubernetes.io/hostname",
}
NO_ROUTER = {
    "labelSelector": {"matchLabels": {str(Label.DEPLOYMENT): "demo", str(Label.ROLE): "router"}},
    "topologyKey": "kubernetes.io/hostname",
}
"""Clients hold connections to the router: a node that takes it along takes those along too."""


def serve(deployments: Deployments, model: Path, recovery: dict[str, int] | None = None, **pod: Any) -> None:
    worker = {
        "name": "worker",
        "image": WORKER_IMAGE,
        "env": [{"name": "OMP_NUM_THREADS", "value": "1"}],
        "resources": {"requests": {"cpu": "1"}},
    }
    deployments.create(
        stages=2,
        model={"source": {"path": str(model)}, "revision": "one"},
        engine={"maxModelLength": 512, "kvCache": {"bytes": "64Mi"}},
        template={"spec": {"containers": [worker], **pod}},
        recovery=recovery or {},
    )


def router(plane: ControlPlane, namespace: str, groups: int = 1) -> str:
    """The base URL of the router's pod, once it sends work to that many groups: condition Ready comes before that."""
    query = {"labelSelector": f"{Label.ROLE}=router"}

    def ready() -> str | None:
        for pod in plane.api.get(f"/api/v1/namespaces/{namespace}/pods", params=query).json()["items"]:
            conditions = {one["type"]: one["status"] for one in pod["status"].get("conditions", [])}
            if conditions.get("Ready") == "True":
                return f"http://{pod['status']['podIP']}:{int(Port.ROUTER)}"
        return None

    url = eventually(ready)
    eventually(lambda: sum(gauge(url, Metric.ROUTER_GROUP_READY)) >= groups)
    return url


def gauge(url: str, name: str) -> list[float]:
    """The values of a metric, one for each set of labels."""
    page = httpx.get(f"{url}/metrics", trust_env=False, timeout=60).raise_for_status().text
    lines = (line for line in page.splitlines() if line.startswith((f"{name} ", f"{name}{{")))
    return [float(line.rsplit(" ", 1)[1]) for line in lines]


def answer(url: str) -> str:
    response = httpx.post(f"{url}/v1/chat/completions", json=QUESTION, timeout=60, trust_env=False)
    assert response.status_code == 200, response.text
    return str(response.json()["choices"][0]["message"]["content"])


def streamed(url: str, begun: Event) -> str:
    """Take a long answer token by token; how it ended."""
    question = QUESTION | {"stream": True, "max_tokens": 300}
    question["messages"] = [{"role": "user", "content": "Tell me the whole history of Rome."}]
    finish = ""
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=question, timeout=150, trust_env=False) as response:
        for line in response.iter_lines():
            if line.startswith("data: {"):
                begun.set()
                finish = json.loads(line.removeprefix("data: "))["choices"][0]["finish_reason"] or finish
            elif line == "data: [DONE]":
                return finish
    return "broken"


def loads(pod: dict[str, Any]) -> str:
    """How often the ranks of a stage have read their checkpoint."""
    url = f"http://{pod['status']['podIP']}:8001/metrics"
    text = httpx.get(url, trust_env=False, timeout=60).raise_for_status().text
    return next(line for line in text.splitlines() if line.startswith("bireme_checkpoint_loads_total"))


@pytest.mark.system
@pytest.mark.timeout(240, func_only=True)
def test_a_model_answers_and_survives_the_loss_of_a_stage(
    fleet: Fleet, deployments: Deployments, start_operator: StartOperator, smollm2_dir: Path
) -> None:
    start_operator("operator", worker_image=WORKER_IMAGE)
    serve(deployments, smollm2_dir)
    epoch = deployments.await_ready()["groups"][0]["epoch"]
    url = router(fleet.plane, deployments.namespace)
    assert "Paris" in answer(url)
    before = deployments.living()
    leader_loads = loads(before[0, 0])
    deployments.delete_pod(before[0, 1])
    eventually(lambda: deployments.get()["status"]["groups"][0]["epoch"] > epoch)
    deployments.await_condition("Ready")
    after = deployments.living()
    assert after[0, 0]["metadata"]["uid"] == before[0, 0]["metadata"]["uid"]
    assert label(after[0, 1], Label.INCARNATION) == "2"
    assert loads(after[0, 0]) == leader_loads, "the survivor kept its weights"
    deployments.change(model={"revision": "two"})
    assert deployments.await_ready()["modelRevision"] == "two"
    assert deployments.uids() == {place: pod["metadata"]["uid"] for place, pod in after.items()}, "loaded in place"
    eventually(lambda: httpx.get(f"{url}/readyz", trust_env=False, timeout=60).status_code == 200)
    assert "Paris" in answer(url)


@pytest.mark.system
@pytest.mark.timeout(240, func_only=True)
def test_t1_the_stage_of_a_dead_node_is_replaced_while_its_leader_keeps_its_weights_and_its_streams(
    fleet: Fleet, deployments: Deployments, start_operator: StartOperator, smollm2_dir: Path
) -> None:
    start_operator("operator", worker_image=WORKER_IMAGE)
    spread = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [APART, NO_ROUTER]}}
    serve(deployments, smollm2_dir, recovery={"nodeLostAfterSeconds": 5}, affinity=spread)
    deployments.await_condition("Ready")
    url = router(fleet.plane, deployments.namespace)
    before = deployments.living()
    leader_loads = loads(before[0, 0])
    begun = Event()
    with ThreadPoolExecutor(1) as pool:
        streaming = pool.submit(streamed, url, begun)
        assert begun.wait(60)
        fleet.node(before[0, 1]["spec"]["nodeName"]).kill()
        eventually(lambda: deployments.incarnation(0, 1) == "2")
        timings = deployments.await_ready()["groups"][0]["timings"]
        assert streaming.result(timeout=150) in {"stop", "length"}
    assert 1_000 < timings["detectMilliseconds"] < timings["totalMilliseconds"], "two witnesses take their time"
    after = deployments.living()
    assert after[0, 0]["metadata"]["uid"] == before[0, 0]["metadata"]["uid"]
    assert loads(after[0, 0]) == leader_loads
