"""What a pod is given from the cluster: variables, volumes, an account, the addresses behind its peers' names."""

import base64
import json
from pathlib import Path

from tests.controlplane.credentials import User
from tests.controlplane.polling import eventually
from tests.fleet.fleet import Fleet
from tests.fleet.pod_bodies import ask, container_status, post, server


def test_environment_and_volumes_come_from_secrets_config_maps_and_fields(
    fleet: Fleet, namespace: str, tmp_path: Path
) -> None:
    post(fleet, namespace, "secrets", {"metadata": {"name": "s"}, "data": {"k": base64.b64encode(b"hush").decode()}})
    (tmp_path / "on-host").write_text("weights")
    env = [
        {"name": "FROM_SECRET", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
        {"name": "FROM_MAP", "valueFrom": {"configMapKeyRef": {"name": "m", "key": "k"}}},
        {"name": "LABEL", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['app']"}}},
        {"name": "JOINED", "value": "$(LABEL)-at-$(POD_IP)"},
        {"name": "TOKEN_FILE", "value": "/var/secret/k"},
        {"name": "STATE", "value": "/state/file,/statement"},
        {"name": "MODEL", "value": "/models/on-host"},
    ]
    volumes = [
        {"name": "secret", "secret": {"secretName": "s"}},
        {"name": "state", "emptyDir": {}},
        {"name": "models", "hostPath": {"path": str(tmp_path)}},
    ]
    mounts = [
        {"name": "secret", "mountPath": "/var/secret"},
        {"name": "state", "mountPath": "/state"},
        {"name": "models", "mountPath": "/models", "readOnly": True},
    ]
    fleet.create(namespace, server("pod", container={"env": env, "volumeMounts": mounts}, volumes=volumes))

    def waits_for_the_map() -> bool:
        waiting = container_status(fleet, namespace, "pod")["state"].get("waiting", {"reason": ""})
        return bool(waiting["reason"] == "CreateContainerConfigError") and "configmaps/m" in waiting["message"]

    eventually(lambda: "containerStatuses" in fleet.pod(namespace, "pod")["status"])
    eventually(waits_for_the_map)
    post(fleet, namespace, "configmaps", {"metadata": {"name": "m"}, "data": {"k": "mapped"}})
    pod = fleet.await_ready(namespace, "pod")
    assert [ask(pod, f"/env/{name}") for name in ("FROM_SECRET", "FROM_MAP")] == ["hush", "mapped"]
    assert ask(pod, "/env/JOINED") == f"pod-at-{pod['status']['podIP']}"
    assert Path(ask(pod, "/env/TOKEN_FILE")).read_text() == "hush"
    assert Path(ask(pod, "/env/MODEL")).read_text() == "weights"
    state, untouched = ask(pod, "/env/STATE").split(",")
    assert Path(state).parent.is_dir()
    assert untouched == "/statement"


def test_a_changed_config_map_reaches_the_pod_and_its_paths_lead_to_the_volumes(fleet: Fleet, namespace: str) -> None:
    post(fleet, namespace, "configmaps", {"metadata": {"name": "m"}, "data": {"routes": "/scratch/token first"}})
    volumes = [{"name": "map", "configMap": {"name": "m"}}, {"name": "scratch", "emptyDir": {}}]
    mounts = [{"name": "map", "mountPath": "/map"}, {"name": "scratch", "mountPath": "/scratch"}]
    env = [{"name": "ROUTES", "value": "/map/routes"}, {"name": "BOUND", "value": "0.0.0.0"}]
    fleet.create(namespace, server("pod", container={"env": env, "volumeMounts": mounts}, volumes=volumes))
    pod = fleet.await_ready(namespace, "pod")
    routes = Path(ask(pod, "/env/ROUTES"))
    path, word = routes.read_text().split()
    assert word == "first"
    assert Path(path).parent.is_dir()
    assert ask(pod, "/env/BOUND") == pod["status"]["podIP"]
    core = f"/api/v1/namespaces/{namespace}"
    merge = {"content-type": "application/merge-patch+json"}
    second = {"data": {"routes": "/scratch/token second"}}
    fleet.plane.api.patch(f"{core}/configmaps/m", json=second, headers=merge).raise_for_status()
    mark = {"metadata": {"annotations": {"routes": "second"}}}
    fleet.plane.api.patch(f"{core}/pods/pod", json=mark, headers=merge).raise_for_status()
    eventually(lambda: routes.read_text() == f"{path} second")


def test_a_pod_speaks_to_the_api_as_its_service_account(fleet: Fleet, namespace: str) -> None:
    fleet.create(namespace, server("pod", automountServiceAccountToken=True))
    pod = fleet.await_ready(namespace, "pod")
    config = json.loads(Path(ask(pod, "/env/KUBECONFIG")).read_text())
    assert config["clusters"][0]["cluster"]["server"] == fleet.plane.url
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    with fleet.plane.client(User("account", token=config["users"][0]["user"]["token"])) as account:
        who = account.post("/apis/authentication.k8s.io/v1/selfsubjectreviews", json=review).raise_for_status().json()
    assert who["status"]["userInfo"]["username"] == f"system:serviceaccount:{namespace}:default"


def test_the_name_of_a_peer_in_a_headless_service_becomes_its_address(fleet: Fleet, namespace: str) -> None:
    spec = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {"app": "leader"}}
    env = [{"name": "LEADER", "value": f"leader-0.group.{namespace}.svc"}, {"name": "SHORT", "value": "leader-0.group"}]
    fleet.create(namespace, server("member", container={"env": env}, subdomain="group"))
    post(fleet, namespace, "services", {"metadata": {"name": "group"}, "spec": spec})
    fleet.create(namespace, server("leader", hostname="leader-0", subdomain="group"))
    leader, member = (fleet.await_ready(namespace, name) for name in ("leader", "member"))
    assert [ask(member, f"/env/{name}") for name in ("LEADER", "SHORT")] == [leader["status"]["podIP"]] * 2
