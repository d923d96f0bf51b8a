"""What a pod may read of the cluster: secrets, config maps, tokens of its service account and its own fields."""

import base64
import re
from collections.abc import Mapping
from typing import Any

from tests.fleet.api import ApiRefused, NodeApi, Object


class Unsatisfied(Exception):
    """Something that a container refers to is not there, or is nothing that this kubelet can give; it waits for it."""


class Sources:
    """The cluster as one pod sees it."""

    def __init__(self, api: NodeApi, pod: Object, ip: str, node: str) -> None:
        self._api = api
        self._pod = pod
        self._ip = ip
        self._node = node
        self._core = f"/api/v1/namespaces/{pod['metadata']['namespace']}"

    async def secret(self, name: str, optional: bool) -> dict[str, bytes]:
        """Return what the secret has, nothing when it is optional and missing."""
        found = await self._find("secrets", name, optional)
        return {key: base64.b64decode(value) for key, value in found.get("data", {}).items()}

    async def config_map(self, name: str, optional: bool) -> dict[str, bytes]:
        """Return what the config map has, nothing when it is optional and missing."""
        found = await self._find("configmaps", name, optional)
        binary = {key: base64.b64decode(value) for key, value in found.get("binaryData", {}).items()}
        return {**{key: str(value).encode() for key, value in found.get("data", {}).items()}, **binary}

    async def token(self, audience: str, seconds: int) -> str:
        """Return a token of the pod's service account."""
        account = self._pod["spec"].get("serviceAccountName", "default")
        spec = {"audiences": [audience] if audience else [], "expirationSeconds": seconds}
        answer = await self._api.post(f"{self._core}/serviceaccounts/{account}/token", {"spec": spec})
        return str(answer["status"]["token"])

    def field(self, path: str) -> str:
        """Return a field by the downward API.

        Raises:
            Unsatisfied: the field is none that the downward API has.
        """
        if keyed := re.fullmatch(r"metadata\.(labels|annotations)\['(.+)'\]", path):
            return str(self._pod["metadata"].get(keyed[1], {}).get(keyed[2], ""))
        known: Mapping[str, Any] = {
            "metadata.name": self._pod["metadata"]["name"],
            "metadata.namespace": self._pod["metadata"]["namespace"],
            "metadata.uid": self._pod["metadata"]["uid"],
            "metadata.labels": _lines(self._pod["metadata"].get("labels", {})),
            "metadata.annotations": _lines(self._pod["metadata"].get("annotations", {})),
            "spec.nodeName": self._node,
            "spec.serviceAccountName": self._pod["spec"].get("serviceAccountName", "default"),
            "status.podIP": self._ip,
            "status.podIPs": self._ip,
            "status.hostIP": "127.0.0.1",
        }
        if path not in known:
            raise Unsatisfied(f"fieldRef {path} is nothing that the simulated kubelet gives")
        return str(known[path])

    async def _find(self, kind: str, name: str, optional: bool) -> Object:
        try:
            return await self._api.get(f"{self._core}/{kind}/{name}")
        except ApiRefused as refusal:
            if refusal.status != 404:
                raise
            if optional:
                return {}
            raise Unsatisfied(f"{kind}/{name} is not there") from None


def _lines(pairs: Mapping[str, str]) -> str:
    return "\n".join(f'{key}="{value}"' for key, value in sorted(pairs.items()))
