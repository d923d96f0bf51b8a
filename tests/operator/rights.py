"""The rights that docs/operator.md lists, and an account that has them and no others."""

from pathlib import Path
from typing import Any

from tests.controlplane.cluster import ControlPlane
from tests.controlplane.credentials import User, write_kubeconfig

_PAGE = Path(__file__).parents[2] / "docs" / "operator.md"
_CLUSTER_WIDE = "--all-namespaces"


def documented() -> list[dict[str, Any]]:
    """The rules of the page's table that a namespaced operator needs."""
    lines = _PAGE.read_text().partition("## Rights that it needs")[2].splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")][2:]
    return [rule(*row) for row in rows if _CLUSTER_WIDE not in row[1] and "kube-node-lease" not in row[1]]


def rule(group: str, resources: str, verbs: str) -> dict[str, Any]:
    names = resources.partition(", in ")[0].partition(" (")[0]
    return {
        "apiGroups": ["" if group == "core" else group],
        "resources": [name.strip() for name in names.split(",")],
        "verbs": [verb.strip() for verb in verbs.split(",")],
    }


def account(plane: ControlPlane, namespace: str, directory: Path) -> Path:
    """Make a service account with the documented rights and return its kubeconfig."""
    core, rbac = f"/api/v1/namespaces/{namespace}", f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}"
    name = {"metadata": {"name": "operator"}}
    plane.api.post(f"{core}/serviceaccounts", json=name).raise_for_status()
    plane.api.post(f"{rbac}/roles", json=name | {"rules": documented()}).raise_for_status()
    subject = {"kind": "ServiceAccount", "name": "operator", "namespace": namespace}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "operator"}
    binding = name | {"roleRef": reference, "subjects": [subject]}
    plane.api.post(f"{rbac}/rolebindings", json=binding).raise_for_status()
    issued = plane.api.post(f"{core}/serviceaccounts/operator/token", json={"spec": {}}).raise_for_status().json()
    path = directory / "operator.kubeconfig"
    user = User("operator", token=issued["status"]["token"])
    write_kubeconfig(path, url=plane.url, authority=plane.files.authority, user=user)
    return path
