"""A real group of two stages as pods on simulated nodes, written by hand: an operator can render no less."""

import secrets
from pathlib import Path
from typing import Any

import httpx
import pytest

from bireme.names import Env, Port
from tests.controlplane.polling import eventually
from tests.fleet.api import Object
from tests.fleet.fixtures import WORKER_IMAGE
from tests.fleet.fleet import Fleet
from tests.fleet.names import is_ready
from tests.fleet.node import GPU

MODEL = "smollm2-135m-instruct"
QUESTION = {
    "model": MODEL,
    "messages": [{"role": "user", "content": "What is the capital of France?"}],
    "temperature": 0,
    "max_tokens": 12,
}
_START_S = 120.0


def stage(index: int, namespace: str, models: Path, group: str, incarnation: int = 1) -> Object:
    """The pod of one stage, as an operator would make it."""
    variables = {
        Env.GROUP_UID: group,
        Env.STAGE: str(index),
        Env.STAGES: "2",
        Env.INCARNATION: str(incarnation),
        Env.LEADER_ADDRESS: f"leader.group.{namespace}.svc.cluster.local",
        Env.TOKEN_FILE: "/var/run/secrets/bireme/token",
        Env.STATE_DIR: "/var/lib/bireme",
        Env.MODEL_NAME: MODEL,
        Env.MODEL_PATH: f"/models/{MODEL}",
        Env.KV_BYTES: str(32 * 1024 * 1024),
        Env.MAX_MODEL_LENGTH: "512",
        "OMP_NUM_THREADS": "1",
    }
    env: list[Object] = [{"name": str(name), "value": value} for name, value in variables.items()]
    env.append({"name": str(Env.POD_IP), "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}})
    ready: Object = {"httpGet": {"path": "/readyz", "port": int(Port.ADMIN)}, "periodSeconds": 1, "failureThreshold": 1}
    container = {
        "name": "worker",
        "image": WORKER_IMAGE,
        "env": env,
        "readinessProbe": ready,
        "resources": {"limits": {GPU: "8"}},
        "volumeMounts": [
            {"name": "state", "mountPath": "/var/lib/bireme"},
            {"name": "token", "mountPath": "/var/run/secrets/bireme"},
            {"name": "models", "mountPath": "/models", "readOnly": True},
        ],
    }
    spec: dict[str, Any] = {
        "automountServiceAccountToken": False,
        "restartPolicy": "OnFailure",
        "hostname": "leader" if index == 0 else f"stage-{index}",
        "subdomain": "group",
        "terminationGracePeriodSeconds": 30,
        "containers": [container],
        "volumes": [
            {"name": "state", "emptyDir": {}},
            {"name": "token", "secret": {"secretName": "token"}},
            {"name": "models", "hostPath": {"path": str(models)}},
        ],
    }
    return {"metadata": {"name": f"stage-{index}-{incarnation}", "labels": {"group": group}}, "spec": spec}


def prepare(fleet: Fleet, namespace: str, group: str) -> None:
    """Make what the pods refer to: the group's token and its headless service."""
    token = {"metadata": {"name": "token"}, "stringData": {"token": secrets.token_hex(32)}}
    spec = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {"group": group}}
    for kind, body in (("secrets", token), ("services", {"metadata": {"name": "group"}, "spec": spec})):
        fleet.plane.api.post(f"/api/v1/namespaces/{namespace}/{kind}", json=body).raise_for_status()


def answer(fleet: Fleet, namespace: str) -> str:
    """Ask the leader directly."""
    ip = fleet.pod(namespace, "stage-0-1")["status"]["podIP"]
    url = f"http://{ip}:{int(Port.HTTP)}/v1/chat/completions"
    said = httpx.post(url, json=QUESTION, timeout=60, trust_env=False).raise_for_status().json()
    return str(said["choices"][0]["message"]["content"])


@pytest.mark.timeout(300, func_only=True)
def test_a_group_of_two_stages_serves_from_its_pods_and_survives_the_loss_of_one(
    fleet: Fleet, namespace: str, smollm2_dir: Path
) -> None:
    prepare(fleet, namespace, "by-hand")
    pods = [fleet.create(namespace, stage(index, namespace, smollm2_dir.parent, "by-hand")) for index in range(2)]
    for pod in pods:
        fleet.await_ready(namespace, pod, within=_START_S)
    assert len({fleet.node_of(namespace, pod).name for pod in pods}) == 2
    assert "Paris" in answer(fleet, namespace)

    lost = fleet.node_of(namespace, pods[1])
    lost.kill()
    eventually(lambda: not is_ready(fleet.pod(namespace, pods[0])))
    lost.boot()
    eventually(lambda: fleet.pod(namespace, pods[1])["status"]["containerStatuses"][0]["restartCount"] == 1)
    for pod in pods:
        fleet.await_ready(namespace, pod, within=_START_S)
    assert fleet.pod(namespace, pods[0])["status"]["containerStatuses"][0]["restartCount"] == 0
    assert "Paris" in answer(fleet, namespace)
