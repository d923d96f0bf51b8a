"""The rights of the operator: the chart's rules are their source, docs/operator.md lists them, an account has no others."""

from pathlib import Path
from typing import Any

import yaml

from tests.controlplane.cluster import ControlPlane
from tests.controlplane.credentials import User, write_kubeconfig
from tests.controlplane.polling import eventually

_ROOT = Path(__file__).parents[2]
_PAGE = _ROOT / "docs" / "operator.md"
_RULES = _ROOT / "charts" / "bireme" / "rules"
_CLUSTER_WIDE = "--all-namespaces"

Right = tuple[str, str, str]


def rules(scope: str) -> list[dict[str, Any]]:
    """The rules of the chart, those of every ``namespace`` or those that the whole ``cluster`` needs besides."""
    return list(yaml.safe_load((_RULES / f"{scope}.yaml").read_text()))


def granted(scope: str) -> set[Right]:
    """The rights that the chart gives."""
    return pairs(rules(scope))


def documented(scope: str) -> set[Right]:
    """The rights that the page's table lists; Leases have roles of their own in the chart."""
    lines = _PAGE.read_text().partition("## Rights that it needs")[2].partition("\n## ")[0].splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")][2:]
    wanted = [
        row for row in rows if not row[1].startswith("leases") and (_CLUSTER_WIDE in row[1]) == (scope == "cluster")
    ]
    return pairs([_rule(*row) for row in wanted])


def pairs(rules: list[dict[str, Any]]) -> set[Right]:
    """Return (group, resource, verb) of all rules."""
    return {
        (group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def _rule(group: str, resources: str, verbs: str) -> dict[str, Any]:
    names = resources.partition(" (")[0]
    return {
        "apiGroups": ["" if group == "core" else group],
        "resources": [name.strip() for name in names.split(",")],
        "verbs": [verb.strip() for verb in verbs.split(",")],
    }


LEASES: dict[str, Any] = {
    "apiGroups": ["coordination.k8s.io"],
    "resources": ["leases"],
    "verbs": ["get", "create", "update"],
}


NODE_LEASES: dict[str, Any] = LEASES | {"verbs": ["get"]}
"""In kube-node-lease, for an operator of the whole cluster."""


def account(plane: ControlPlane, namespace: str, directory: Path, *, cluster: bool = False) -> Path:
    """Make a service account with the chart's rights in one namespace, or in all, and return its kubeconfig."""
    core = f"/api/v1/namespaces/{namespace}"
    plane.api.post(f"{core}/serviceaccounts", json={"metadata": {"name": "operator"}}).raise_for_status()
    if cluster:
        _bind(plane, namespace, [*rules("namespace"), *rules("cluster")])
        _bind(plane, namespace, [LEASES], within=namespace)
        _bind(plane, namespace, [NODE_LEASES], within="kube-node-lease")
    else:
        _bind(plane, namespace, [*rules("namespace"), LEASES], within=namespace)
    eventually(lambda: _may_list_pods(plane, namespace, "operator"))  # whoever judges it hears of it later
    return kubeconfig_of(plane, namespace, "operator", directory)


def _bind(plane: ControlPlane, namespace: str, given: list[dict[str, Any]], within: str = "") -> None:
    """Give the account of ``namespace`` these rights, ``within`` one namespace or in all."""
    kind = "Role" if within else "ClusterRole"
    base = "/apis/rbac.authorization.k8s.io/v1" + (f"/namespaces/{within}" if within else "")
    name = {"metadata": {"name": f"{namespace}-operator"}}
    plane.api.post(f"{base}/{kind.lower()}s", json=name | {"rules": given}).raise_for_status()
    subject = {"kind": "ServiceAccount", "name": "operator", "namespace": namespace}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": f"{namespace}-operator"}
    binding = name | {"roleRef": reference, "subjects": [subject]}
    plane.api.post(f"{base}/{kind.lower()}bindings", json=binding).raise_for_status()


def _may_list_pods(plane: ControlPlane, namespace: str, account: str) -> bool:
    question = {"namespace": namespace, "verb": "list", "resource": "pods"}
    user = f"system:serviceaccount:{namespace}:{account}"
    review = {"spec": {"user": user, "resourceAttributes": question}}
    answer = plane.api.post("/apis/authorization.k8s.io/v1/subjectaccessreviews", json=review)
    return bool(answer.raise_for_status().json()["status"]["allowed"])


def kubeconfig_of(plane: ControlPlane, namespace: str, account: str, directory: Path) -> Path:
    """Return the kubeconfig of a service account."""
    url = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
    issued = plane.api.post(url, json={"spec": {}}).raise_for_status().json()
    path = directory / f"{account}.kubeconfig"
    user = User(account, token=issued["status"]["token"])
    write_kubeconfig(path, url=plane.url, authority=plane.files.authority, user=user)
    return path
