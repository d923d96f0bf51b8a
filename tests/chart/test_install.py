"""The chart on a real API server: install, upgrade, uninstall, take over, and `helm test`, as a user does them.

Its operator runs as the chart says: the arguments of its Deployment, the rights of its service account, the key of its
Secret. The control plane is this module's own, because the CRD comes and goes.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from bireme.api.crd import COMMITTED
from bireme.names import Annotation
from tests.chart.helm import CHART, CI_VALUES, ROOT, Helm, Object
from tests.chart.pods import ChartPod
from tests.controlplane.cluster import API_ONLY, ControlPlane
from tests.controlplane.cluster import control_plane as running_control_plane
from tests.controlplane.crds import await_served
from tests.controlplane.polling import eventually
from tests.controlplane.programs import Program
from tests.operator.deployments import Deployments
from tests.operator.stage_kubelet import StageKubelet

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
CRD = f"{CRDS}/inferencedeployments.bireme.dev"
APPS = "/apis/apps/v1/namespaces/{}/deployments/bireme-operator"
KEY = "/api/v1/namespaces/{}/secrets/bireme-master-key"
CLUSTER_WIDE = {"ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition"}
MERGE = {"content-type": "application/merge-patch+json"}


@pytest.fixture(scope="module")
def plane(programs: dict[Program, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane without a CRD."""
    with running_control_plane(tmp_path_factory.mktemp("charted"), programs, parts=API_ONLY) as plane:
        yield plane


@pytest.fixture
def user(helm: Helm, plane: ControlPlane) -> Helm:
    """A helm of the cluster's administrator."""
    return Helm(helm.program, helm.home, plane.kubeconfig)


@pytest.fixture
def system(plane: ControlPlane, user: Helm) -> Iterator[str]:
    """A namespace for the release; what is left of it is taken away, the CRD too."""
    made = plane.api.post("/api/v1/namespaces", json={"metadata": {"generateName": "system-"}})
    name = str(made.raise_for_status().json()["metadata"]["name"])
    yield name
    if "bireme" in user.succeed("list", "--short", "--namespace", name):
        user.succeed("uninstall", "bireme", "--namespace", name)
    if plane.api.get(CRD).status_code == 200:
        assert plane.kubectl("delete", "crd", "inferencedeployments.bireme.dev").returncode == 0
    plane.api.delete(f"/api/v1/namespaces/{name}").raise_for_status()


def previous(directory: Path) -> Path:
    """The chart as it was one version ago."""
    copy = directory / "previous" / "bireme"
    shutil.copytree(CHART, copy)
    about = yaml.safe_load((copy / "Chart.yaml").read_text())
    (copy / "Chart.yaml").write_text(yaml.safe_dump(about | {"version": "0.0.9", "appVersion": "0.0.9"}))
    return copy


def established(plane: ControlPlane) -> None:
    await_served(plane, "crd/inferencedeployments.bireme.dev")


def monitoring(plane: ControlPlane) -> None:
    """Let the server know the Prometheus operator's kinds, whatever is in them."""
    for kind in ("PodMonitor", "ServiceMonitor", "PrometheusRule"):
        plural = f"{kind.lower()}s"
        schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
        version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
        group = "monitoring.coreos.com"
        body = {
            "metadata": {"name": f"{plural}.{group}"},
            "spec": {
                "group": group,
                "names": {"kind": kind, "plural": plural},
                "scope": "Namespaced",
                "versions": [version],
            },
        }
        plane.api.post(CRDS, json=body).raise_for_status()
        await_served(plane, f"crd/{plural}.{group}", kind=f"{plural}.{group}")


def test_the_server_takes_everything_that_is_rendered(plane: ControlPlane, helm: Helm) -> None:
    monitoring(plane)
    for name in ("bireme-system", "team-a", "team-b"):
        plane.api.post("/api/v1/namespaces", json={"metadata": {"name": name}}).raise_for_status()
    for values in CI_VALUES:
        objects = helm.render("--values", values)
        for body in objects:
            if body["kind"] not in CLUSTER_WIDE:
                body["metadata"].setdefault("namespace", "bireme-system")
        _make_accounts(plane, objects)
        words = ("apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", "-")
        judged = plane.kubectl(*words, stdin=yaml.safe_dump_all(objects))
        assert judged.returncode == 0, f"{values.name}: {judged.stderr}"
        assert "arning" not in judged.stderr, judged.stderr


def _make_accounts(plane: ControlPlane, objects: list[Object]) -> None:
    """Pods are judged against accounts that are there; helm makes those first."""
    for body in objects:
        if body["kind"] == "ServiceAccount":
            made = plane.api.post("/api/v1/namespaces/bireme-system/serviceaccounts", json=body)
            assert made.status_code in {201, 409}, made.text


def test_an_uninstall_keeps_the_crd_its_objects_and_the_key(plane: ControlPlane, user: Helm, system: str) -> None:
    words = (CHART, "--namespace", system)
    user.succeed("install", "bireme", *words)
    established(plane)
    deployments = Deployments(plane, system)
    deployments.create()
    key = _data(plane, system)
    user.succeed("upgrade", "bireme", *words, "--set", "operator.replicas=2")
    assert _data(plane, system) == key, "an upgrade makes no new key"
    user.succeed("uninstall", "bireme", "--namespace", system)
    assert plane.api.get(APPS.format(system)).status_code == 404
    assert _data(plane, system) == key
    for body in (plane.api.get(CRD).json(), deployments.get()):
        assert "finalizers" not in body["metadata"] or body["kind"] == "CustomResourceDefinition"
        assert "deletionTimestamp" not in body["metadata"]
    user.succeed("install", "bireme", *words)
    assert _data(plane, system) == key, "a new release takes up what the old one left"


def _data(plane: ControlPlane, namespace: str) -> dict[str, str]:
    return dict(plane.api.get(KEY.format(namespace)).raise_for_status().json()["data"])


def test_the_crd_may_come_by_kubectl_and_the_chart_take_it_over(
    plane: ControlPlane, user: Helm, system: str, tmp_path: Path
) -> None:
    words = (CHART, "--namespace", system)
    assert plane.kubectl("apply", "-f", str(ROOT / "crds")).returncode == 0
    user.succeed("install", "bireme", *words, "--set", "crds.enabled=false")
    assert "helm.sh/chart" not in plane.api.get(CRD).json()["metadata"]["labels"]
    by_chart = ("upgrade", "bireme", *words, "--set", "crds.enabled=true")
    refused = user.run(*by_chart)
    assert refused.returncode != 0
    assert "inferencedeployments.bireme.dev" in refused.stderr
    user.succeed(*by_chart, "--take-ownership")
    older = tmp_path / "older.yaml"
    older.write_text((ROOT / COMMITTED).read_text().replace("description: What is wanted.", "description: Wanted."))
    assert plane.kubectl("apply", "-f", str(older)).returncode == 0
    assert user.run(*by_chart).returncode != 0, "kubectl wrote something else over it"
    user.succeed(*by_chart, "--force-conflicts")
    found = plane.api.get(CRD).json()
    assert found["metadata"]["labels"]["helm.sh/chart"].startswith("bireme-")
    applied = plane.kubectl("apply", "-f", str(ROOT / "crds"))
    assert applied.returncode == 0, applied.stderr


@pytest.mark.timeout(240, func_only=True)
def test_an_upgrade_of_the_operator_touches_no_worker_pod(
    plane: ControlPlane, user: Helm, system: str, tmp_path: Path
) -> None:
    plane.api.post(f"/api/v1/namespaces/{system}/serviceaccounts", json={"metadata": {"name": "default"}})
    fast = ("--namespace", system, "--set", "operator.leaseSeconds=15")
    user.succeed("install", "bireme", previous(tmp_path), *fast)
    established(plane)
    deployments = Deployments(plane, system)
    with StageKubelet(plane, system, tmp_path / "pods"):
        old = _operator(plane, system, tmp_path / "old")
        try:
            # The kubelet of these tests binds pods to a node that is closed to the scheduler.
            deployments.create(replicas=2, stages=2, disruption={"onCordon": "Ignore"})
            deployments.await_condition("Ready")
            before = _worker_pods(deployments)
            image = _image(next(iter(before.values())))
            user.succeed("upgrade", "bireme", CHART, *fast)
            new = _operator(plane, system, tmp_path / "new")
        finally:
            old.end()
        try:
            new.await_log("holds the Lease")
            _helm_test(plane, user, system, tmp_path / "checkup")
            deployments.change(replicas=3)
            deployments.await_condition("Ready")
            after = _worker_pods(deployments)
            assert {place: after[place] for place in before} == before
            assert image.endswith(":0.0.9")
            assert _image(after[2, 0]) == image, "groups of one revision are alike"
            deployments.annotate(Annotation.RESTART, "now")
            eventually(lambda: image not in map(_image, deployments.living().values()))
            deployments.await_ready()
            after = _worker_pods(deployments)
        finally:
            new.end()
        for operator in (old, new):
            assert "forbidden" not in operator.log.read_text(), operator.log.read_text()
        user.succeed("uninstall", "bireme", "--namespace", system)
        for body in (deployments.get(), *deployments.pods()):
            assert "finalizers" not in body["metadata"]
        assert _worker_pods(deployments) == after


def _operator(plane: ControlPlane, namespace: str, directory: Path) -> ChartPod:
    body = plane.api.get(APPS.format(namespace)).raise_for_status().json()
    return ChartPod(plane, namespace, body["spec"]["template"]["spec"], directory)


def _worker_pods(deployments: Deployments) -> dict[tuple[int, int], Object]:
    """What identifies each pod and what it was made of; its status is not the operator's."""
    return {
        place: {"uid": pod["metadata"]["uid"], "labels": pod["metadata"]["labels"], "spec": pod["spec"]}
        for place, pod in deployments.living().items()
    }


def _image(pod: Object) -> str:
    return str(pod["spec"]["containers"][0]["image"])


def _helm_test(plane: ControlPlane, user: Helm, namespace: str, directory: Path) -> None:
    """Run `helm test`, with this test as the kubelet of its pod."""
    url = f"/api/v1/namespaces/{namespace}/pods/bireme-checkup"
    with user.start("test", "bireme", "--namespace", namespace, "--timeout", "90s") as process:
        eventually(lambda: plane.api.get(url).status_code == 200)
        spec: dict[str, Any] = plane.api.get(url).json()["spec"]
        pod = ChartPod(plane, namespace, spec, directory)
        code = pod.process.wait(timeout=90)
        said = pod.log.read_text()
        status = {"phase": "Failed" if code else "Succeeded"}
        plane.api.patch(f"{url}/status", json={"status": status}, headers=MERGE).raise_for_status()
        out, err = process.communicate(timeout=60)
    assert code == 0, said
    assert "holds the Lease and renews it" in said
    assert process.returncode == 0, out + err
    plane.api.request("DELETE", url, json={"gracePeriodSeconds": 0})
