"""What all objects of a deployment have in common: namespace, labels, an owner that takes them along when it goes."""

from dataclasses import dataclass
from typing import Any, Final

from bireme.names import GROUP, KIND, VERSION, Label

Object = dict[str, Any]

MANAGED_BY: Final = "bireme-operator"


@dataclass(frozen=True)
class Owner:
    """The InferenceDeployment that owns what is rendered."""

    name: str
    namespace: str
    uid: str


def metadata(owner: Owner, name: str, role: str, labels: dict[str, str] | None = None) -> Object:
    """Return the metadata of an object with the role ``role``.

    Owner references are why no finalizer is needed: garbage is collected while the operator is down.
    """
    common: dict[str, str] = {
        Label.DEPLOYMENT.value: owner.name,
        Label.ROLE.value: role,
        "app.kubernetes.io/name": "bireme",
        "app.kubernetes.io/instance": owner.name,
        "app.kubernetes.io/component": role,
        "app.kubernetes.io/managed-by": MANAGED_BY,
    }
    reference = {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": KIND,
        "name": owner.name,
        "uid": owner.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }
    return {
        "name": name,
        "namespace": owner.namespace,
        "labels": common | (labels or {}),
        "ownerReferences": [reference],
    }
