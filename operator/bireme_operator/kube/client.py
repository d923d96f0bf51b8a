"""The official async dynamic client behind a handful of verbs: plain dicts, typed errors, one field manager a purpose.

Server-side apply is what makes a repeated write harmless; one manager per purpose keeps two purposes from undoing one
another. Every write first asks ``may_write``: a process that has lost its Lease must not write another byte.
"""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.request import getproxies

import aiohttp
from kubernetes.aio import config
from kubernetes.aio.client import ApiClient, Configuration
from kubernetes.aio.client.exceptions import ApiException
from kubernetes.aio.dynamic import DynamicClient

from bireme_operator.kube.errors import KubeError, NotFound, Unavailable, error_of
from bireme_operator.kube.resources import Resource, resource_in, resource_of

Object = dict[str, Any]

_TIMEOUT_S: Final = 15.0
_CONNECTIONS: Final = 64
_APPLY: Final = "application/apply-patch+yaml"
_MERGE: Final = "application/merge-patch+json"
_STRATEGIC: Final = "application/strategic-merge-patch+json"
_SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")


class Manager(StrEnum):
    """Field managers, one for each purpose."""

    CHILDREN = "bireme-operator"
    STATUS = "bireme-status"
    COMMAND_LINE = "bireme-cli"


_VERBS: Final = {"post": "create", "put": "update", "patch": "patch", "delete": "delete"}


def _always() -> None:
    return None


class Witness(Protocol):
    """Is told what is asked of the API server."""

    def wrote(self, verb: str, resource: str) -> None:
        """A write is sent; both words as RBAC has them."""

    def erred(self, error: KubeError) -> None:
        """A request was not granted."""


class Kube:
    """Speaks with one API server. All methods raise `KubeError`."""

    def __init__(self, api: ApiClient, may_write: Callable[[], None] = _always, witness: Witness | None = None) -> None:
        self._api = api
        self._dynamic = DynamicClient(api)  # type: ignore[no-untyped-call]
        self._may_write = may_write
        self._witness = witness

    def guarded(self, may_write: Callable[[], None]) -> "Kube":
        """Return the same connection, whose writes all ask ``may_write`` first; it raises to forbid them."""
        return Kube(self._api, may_write, self._witness)

    def witnessed(self, witness: Witness) -> "Kube":
        """Return the same connection, whose requests ``witness`` is told of."""
        return Kube(self._api, self._may_write, witness)

    async def get(self, resource: Resource, namespace: str, name: str) -> Object:
        """Read one object live."""
        return await self._ask("get", resource.path(namespace, name))

    async def list(self, resource: Resource, namespace: str | None, selector: str = "") -> Object:
        """Read all objects live: a consistent read, never an old cache of the server's."""
        return await self._ask("get", resource.path(namespace), {"labelSelector": selector} if selector else {})

    async def serves(self, resource: Resource) -> bool:
        """Whether the server's discovery names this kind, which it does a moment after a CRD is established."""
        try:
            found = await self._ask("get", f"/apis/{resource.api_version}")
        except NotFound:
            return False
        return any(one.get("name") == resource.plural for one in found.get("resources") or ())

    async def create(
        self, manifest: Object, *, manager: Manager = Manager.CHILDREN, dry_run: bool = False, strict: bool = False
    ) -> Object:
        """Create an object; ``strict`` refuses fields that the server does not know."""
        query = {"fieldManager": manager.value}
        query |= {"dryRun": "All"} if dry_run else {}
        query |= {"fieldValidation": "Strict"} if strict else {}
        path = resource_of(manifest).path(manifest["metadata"].get("namespace"))
        return await self._write("post", path, query, manifest)

    async def apply(self, manifest: Object, *, manager: Manager = Manager.CHILDREN) -> Object:
        """Apply the whole intent of ``manager`` for an object of ours."""
        return await self._apply(manifest, None, manager)

    async def apply_status(self, manifest: Object) -> Object:
        """Apply the status of an object."""
        return await self._apply(manifest, "status", Manager.STATUS)

    async def patch(
        self, resource: Resource, namespace: str, name: str, change: Object, *, manager: Manager = Manager.CHILDREN
    ) -> Object:
        """Merge a small change into an object."""
        query = {"fieldManager": manager.value}
        return await self._write("patch", resource.path(namespace, name), query, change, _MERGE)

    async def patch_parts(self, resource: Resource, namespace: str, name: str, change: Object) -> Object:
        """Change single entries of an object's lists, by their keys: others may change other entries meanwhile."""
        query = {"fieldManager": Manager.CHILDREN.value}
        return await self._write("patch", resource.path(namespace, name), query, change, _STRATEGIC)

    async def replace(self, manifest: Object, *, manager: Manager = Manager.CHILDREN) -> Object:
        """Replace an object; its resourceVersion must be the present one."""
        meta = manifest["metadata"]
        path = resource_of(manifest).path(meta["namespace"], meta["name"])
        return await self._write("put", path, {"fieldManager": manager.value}, manifest)

    async def delete(
        self, resource: Resource, namespace: str, name: str, *, uid: str, grace_s: int | None = None
    ) -> Object:
        """Delete the object of this name if it is still the one with ``uid``, and return it as it is now.

        Raises:
            Conflict: another object has the name now.
        """
        body: Object = {"preconditions": {"uid": uid}}
        body |= {} if grace_s is None else {"gracePeriodSeconds": grace_s}
        return await self._write("delete", resource.path(namespace, name), {}, body)

    async def _apply(self, manifest: Object, subresource: str | None, manager: Manager) -> Object:
        meta = manifest["metadata"]
        path = resource_of(manifest).path(meta.get("namespace"), meta["name"], subresource)
        query = {"fieldManager": manager.value, "force": "true"}
        return await self._write("patch", path, query, manifest, _APPLY)

    async def _write(
        self, method: str, path: str, query: Mapping[str, str], body: Object, content_type: str = "application/json"
    ) -> Object:
        self._may_write()
        if self._witness is not None:
            self._witness.wrote(_VERBS[method], resource_in(path))
        return await self._ask(method, path, query, body, content_type)

    async def _ask(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Object | None = None,
        content_type: str = "application/json",
    ) -> Object:
        try:
            return await self._request(method, path, query or {}, body, content_type)
        except KubeError as error:
            if self._witness is not None:
                self._witness.erred(error)
            raise

    async def _request(
        self, method: str, path: str, query: Mapping[str, str], body: Object | None, content_type: str
    ) -> Object:
        try:
            answer = await self._dynamic.request(
                method,
                path,
                body=body,
                query_params=list(query.items()),
                content_type=content_type,
                serializer=lambda _, data: data,
                _request_timeout=aiohttp.ClientTimeout(total=_TIMEOUT_S),
            )
        except ApiException as error:
            raise error_of(error.status or 0, error.body) from None
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise Unavailable(f"{method} {path}: {str(error) or type(error).__name__}") from error
        assert isinstance(answer, dict)
        return answer


@asynccontextmanager
async def connected() -> AsyncIterator[Kube]:
    """Connect as the service account of this pod or, outside a cluster, as the kubeconfig says."""
    settings = Configuration()
    if _SERVICE_ACCOUNT.exists():
        config.load_incluster_config(client_configuration=settings)  # type: ignore[no-untyped-call]
    else:
        await config.load_kube_config(client_configuration=settings)  # type: ignore[no-untyped-call]
    settings.connection_pool_maxsize = _CONNECTIONS
    # Where there is no proxy, to look for one takes a thread and a file with each request.
    settings.client_session_kwargs = {"trust_env": bool(getproxies())}
    async with ApiClient(configuration=settings) as api:
        yield Kube(api)
