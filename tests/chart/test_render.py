"""What helm makes of the chart: it lints, renders with every set of values, and refuses wrong values in plain words."""

from pathlib import Path
from typing import Any

import pytest

from bireme.api.deployment import Spec
from bireme_operator.render.owned import Owner
from bireme_operator.render.router import render_router
from tests.chart.helm import CHART, CI_VALUES, Helm, Object, one

CLUSTER_WIDE = {"ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition"}
HOOK = "helm.sh/hook"


@pytest.mark.parametrize("values", CI_VALUES, ids=lambda path: path.stem)
def test_the_chart_lints_with(helm: Helm, values: Path) -> None:
    helm.succeed("lint", "--strict", CHART, "--values", values)


@pytest.mark.parametrize("values", CI_VALUES, ids=lambda path: path.stem)
def test_every_object_is_labelled_and_holds_nobody_back(helm: Helm, values: Path) -> None:
    objects = helm.render("--values", values)
    for body in objects:
        labels = body["metadata"]["labels"]
        assert labels["app.kubernetes.io/instance"] == "bireme"
        assert labels["helm.sh/chart"].startswith("bireme-")
        assert "finalizers" not in body["metadata"]
    names = [(body["kind"], body["metadata"].get("namespace"), body["metadata"]["name"]) for body in objects]
    assert len(set(names)) == len(names)


def _pods(objects: list[Object]) -> list[dict[str, Any]]:
    found = [body["spec"] for body in objects if body["kind"] == "Pod"]
    return found + [body["spec"]["template"]["spec"] for body in objects if body["kind"] == "Deployment"]


@pytest.mark.parametrize("values", CI_VALUES, ids=lambda path: path.stem)
def test_every_pod_meets_the_restricted_level_and_writes_only_where_it_may(helm: Helm, values: Path) -> None:
    pods = _pods(helm.render("--values", values))
    assert len(pods) == 2
    for pod in pods:
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        (container,) = pod["containers"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert "memory" in container["resources"]["limits"]
        assert all("hostPath" not in volume for volume in pod["volumes"])


def test_an_operator_of_namespaces_has_no_right_outside_of_them(helm: Helm) -> None:
    objects = helm.render("--values", CHART / "ci" / "namespaced-values.yaml")
    assert not [body for body in objects if body["kind"] in CLUSTER_WIDE - {"ClusterRole"}]
    # The metrics reader's is bound in the two namespaces and, for the operator's metrics, in the release's own.
    assert [body["metadata"]["name"] for body in objects if body["kind"] == "ClusterRole"] == ["bireme-metrics-reader"]
    readers = [body["metadata"] for body in objects if body["metadata"]["name"] == "bireme-metrics-reader"]
    assert [one["namespace"] for one in readers if "namespace" in one] == ["team-a", "team-b", "bireme-system"]
    bound = {
        body["metadata"]["namespace"]
        for body in objects
        if body["metadata"]["name"] == "bireme-operator"
        if body["kind"] == "Role"
    }
    assert bound == {"team-a", "team-b"}
    arguments = one(objects, "Deployment")["spec"]["template"]["spec"]["containers"][0]["args"]
    assert {"--namespace=team-a", "--namespace=team-b"} <= set(arguments)
    assert "--all-namespaces" not in arguments


def test_an_operator_of_namespaces_looks_after_its_own_by_default(helm: Helm) -> None:
    objects = helm.render("--set", "scope.mode=Namespaces", namespace="team")
    assert one(objects, "Role", "bireme-operator")["metadata"]["namespace"] == "team"


def test_one_operator_has_no_budget_and_two_have_one(helm: Helm) -> None:
    assert not [body for body in helm.render() if body["kind"] == "PodDisruptionBudget"]
    budget = one(helm.render("--set", "operator.replicas=2"), "PodDisruptionBudget")
    assert budget["spec"]["maxUnavailable"] == 1


def test_images_are_named_by_registry_tag_or_digest(helm: Helm) -> None:
    digest = "sha256:" + "0" * 64
    words = ["image.registry=example.com/ml/", "image.tag=v2", f"image.worker.digest={digest}"]
    objects = helm.render(*[word for one in words for word in ("--set", one)])
    (container,) = one(objects, "Deployment")["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "example.com/ml/bireme-operator:v2"
    assert f"--worker-image=example.com/ml/bireme-worker@{digest}" in container["args"]
    assert "--router-image=example.com/ml/bireme-router:v2" in container["args"]


def test_the_crd_is_kept_and_can_be_left_out(helm: Helm) -> None:
    crd = one(helm.render(), "CustomResourceDefinition")
    assert crd["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    assert "annotations" not in one(helm.render("--set", "crds.keep=false"), "CustomResourceDefinition")["metadata"]
    without = helm.render("--set", "crds.enabled=false")
    assert not [body for body in without if body["kind"] == "CustomResourceDefinition"]


def test_an_alert_keeps_its_own_braces_and_gets_its_page(helm: Helm) -> None:
    words = ["metrics.rules.enabled=true", "metrics.rules.runbookUrl=https://example.com/book/"]
    rule = one(helm.render(*[word for one in words for word in ("--set", one)]), "PrometheusRule")
    alert = rule["spec"]["groups"][0]["rules"][0]
    assert "{{ $labels.namespace }}" in alert["annotations"]["summary"]
    assert alert["annotations"]["runbook_url"] == f"https://example.com/book/{alert['alert']}.md"


MONITORED = ("--set", "metrics.serviceMonitor.enabled=true")


@pytest.mark.parametrize("tls", [None, {"secretName": "pair"}])
def test_the_monitor_finds_the_router_as_its_service_speaks(helm: Helm, tls: dict[str, str] | None) -> None:
    source = {"path": "/m"}
    spec = Spec.model_validate({"model": {"source": source, "revision": "1"}, "router": {"tls": tls} if tls else {}})
    service = one(render_router(Owner("demo", "team", "uid"), spec, image="i", token_secret="s"), "Service")
    names = {port["name"] for port in service["spec"]["ports"]}
    endpoints = one(helm.render(*MONITORED), "ServiceMonitor")["spec"]["endpoints"]
    (endpoint,) = (endpoint for endpoint in endpoints if endpoint["port"] in names)
    assert endpoint.get("scheme", "http") == ("https" if tls else "http")


def test_a_certificate_is_checked_by_what_the_values_name(helm: Helm) -> None:
    def read(*words: str) -> Object:
        (endpoint,) = (
            endpoint
            for endpoint in one(helm.render(*MONITORED, *words), "ServiceMonitor")["spec"]["endpoints"]
            if endpoint["port"] == "https"
        )
        config: Object = endpoint["tlsConfig"]
        return config

    assert read() == {"insecureSkipVerify": True}
    named = read("--set", "metrics.serviceMonitor.tlsConfig.serverName=chat.example.com")
    assert named == {"serverName": "chat.example.com"}


def test_signs_of_nodes_that_will_not_last_reach_the_operator(helm: Helm) -> None:
    words = ["operator.leaveTaints={example.com/reclaim:30}", "operator.leaveConditions={LinkUp=False}"]
    words += ["operator.silentNodeSeconds=300"]
    operator = one(helm.render(*[word for one in words for word in ("--set", one)]), "Deployment")
    said = operator["spec"]["template"]["spec"]["containers"][0]["args"]
    assert {"--leave-taint=example.com/reclaim:30", "--leave-condition=LinkUp=False"} <= set(said)
    assert "--silent-node-seconds=300" in said


def test_the_notes_tell_three_commands(helm: Helm) -> None:
    said = helm.succeed("install", "bireme", CHART, "--namespace", "team", "--dry-run=client")
    notes = said.partition("NOTES:")[2]
    for command in ("helm test bireme --namespace team", "kubectl apply --namespace team", "kubectl get infd demo"):
        assert command in notes


WRONG = {
    "operator.replicas=two": ["operator/replicas", "want integer"],
    "operator.replicas=10": ["operator/replicas", "maximum: got 10, want 9"],
    "operator.replica=2": ["operator", "'replica' not allowed"],
    "crd.enabled=true": ["'crd' not allowed"],
    "crds.enabled=maybe": ["crds/enabled", "want boolean"],
    "scope.mode=namespaced": ["scope/mode", "'Cluster', 'Namespaces'"],
    "scope.namespaces={Team_A}": ["scope/namespaces/0", "does not match pattern"],
    "image.pullPolicy=Sometimes": ["image/pullPolicy", "'Always', 'IfNotPresent', 'Never'"],
    "image.worker.digest=sha256:12": ["image/worker/digest", "does not match pattern"],
    "operator.probePort=80": ["operator/probePort", "minimum: got 80, want 1,024"],
    "metrics.podMonitor.interval=soon": ["metrics/podMonitor/interval", "does not match pattern"],
    "metrics.rules.runbookUrl=books": ["metrics/rules/runbookUrl", "does not match pattern"],
    "operator.extraArgs={workers=3}": ["operator/extraArgs/0", "does not match pattern"],
    "operator.leaveConditions={LinkUp=no}": ["operator/leaveConditions/0", "does not match pattern"],
    "scope.namespaces={team}": ["scope.namespaces is only read with scope.mode: Namespaces"],
    "serviceAccount.create=false": ["name the service account in serviceAccount.name"],
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_value_is_refused_with_its_place_and_what_would_do(helm: Helm, wrong: str) -> None:
    done = helm.run("template", "bireme", CHART, "--set", wrong)
    assert done.returncode != 0
    assert [words for words in WRONG[wrong] if words not in done.stderr] == [], done.stderr
