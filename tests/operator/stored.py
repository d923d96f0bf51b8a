"""What an operator of an earlier release left in a cluster, kept as files and put into another one.

Each file of golden/before has a deployment with its status, its renderings, its Secrets and its pods, as the server had
them while all groups served. Tokens are not kept: they follow from the master key and the uid, in every release.
"""

import hashlib
import hmac
from pathlib import Path
from typing import Any

import yaml

from tests.operator.deployments import MERGE, Deployments

BEFORE = Path(__file__).parent / "golden" / "before"
NAMES = tuple(sorted(path.stem for path in BEFORE.glob("*.yaml")))
_URLS = {
    "ControllerRevision": "/apis/apps/v1/namespaces/{}/controllerrevisions",
    "Secret": "/api/v1/namespaces/{}/secrets",
    "Pod": "/api/v1/namespaces/{}/pods",
}
_TOKENS = 64


def stored(name: str) -> list[dict[str, Any]]:
    """The objects of one deployment, itself first."""
    return list(yaml.safe_load_all((BEFORE / f"{name}.yaml").read_text()))


def restore(deployments: Deployments, name: str, master_key: bytes) -> dict[str, Any]:
    """Put a deployment with all its objects into the namespace; return its status."""
    wish, *owned = stored(name)
    api, status = deployments.plane.api, wish.pop("status")
    made = api.post(deployments.url, json=wish).raise_for_status().json()
    uid: str = made["metadata"]["uid"]
    api.patch(f"{deployments.url}/{name}/status", json={"status": status}, headers=MERGE).raise_for_status()
    for body in owned:
        here = _in(body, uid, deployments.namespace)
        if here["kind"] == "Secret":
            here["stringData"] = {str(group): _token(master_key, f"{uid}-{group}") for group in range(_TOKENS)}
        created = api.post(_URLS[here["kind"]].format(deployments.namespace), json=here)
        assert created.status_code == 201, created.text
    return dict(status)


def _in(body: dict[str, Any], uid: str, namespace: str) -> dict[str, Any]:
    text = yaml.safe_dump(body).replace("OWNER-UID", uid).replace("NAMESPACE", namespace)
    return dict(yaml.safe_load(text))


def _token(master_key: bytes, group: str) -> str:
    return hmac.new(master_key, group.encode(), hashlib.sha256).hexdigest()
