"""The API server behind a handful of verbs: plain dicts, typed errors, one field manager a purpose.

Where the server is and who we are is the official client's to say; requests go by its settings but past its models: it
copies every body twice and reads JSON slowly, which with thousands of pods was half of what a write cost.
Server-side apply is what makes a repeated write harmless; one manager per purpose keeps two purposes from undoing one
another. Every write first asks ``may_write``: a process that has lost its Lease must not write another byte.
"""

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar
from urllib.request import getproxies

import aiohttp
import msgspec
from kubernetes.aio import config
from kubernetes.aio.client import Configuration
from kubernetes.aio.client.rest import RESTClientObject

from bireme_operator.kube.errors import KubeError, NotFound, Unavailable, error_of
from bireme_operator.kube.resources import Resource, resource_in, resource_of

Object = dict[str, Any]
Answer = TypeVar("Answer")


class _List(msgspec.Struct):
    """The objects are read when they are looked at."""

    metadata: Object
    items: list[msgspec.Raw] | None = None


_object: Final = msgspec.json.Decoder(Object)
_list: Final = msgspec.json.Decoder(_List)

_TIMEOUT: Final = aiohttp.ClientTimeout(total=15.0)
_READ_BUFFER: Final = 1 << 21
_CONNECTIONS: Final = 64
_JSON: Final = "application/json"
_APPLY: Final = "application/apply-patch+yaml"
_MERGE: Final = "application/merge-patch+json"
_STRATEGIC: Final = "application/strategic-merge-patch+json"
_NO_VERSION: Final = "1"
"""What no object has: etcd is at it while it is empty."""
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

    def __init__(self, line: "Line", may_write: Callable[[], None] = _always, witness: Witness | None = None) -> None:
        self._line = line
        self._may_write = may_write
        self._witness = witness

    def guarded(self, may_write: Callable[[], None]) -> "Kube":
        """Return the same connection, whose writes all ask ``may_write`` first; it raises to forbid them."""
        return Kube(self._line, may_write, self._witness)

    def witnessed(self, witness: Witness) -> "Kube":
        """Return the same connection, whose requests ``witness`` is told of."""
        return Kube(self._line, self._may_write, witness)

    async def get(self, resource: Resource, namespace: str, name: str) -> Object:
        """Read one object live."""
        return await self._ask("get", resource.path(namespace, name))

    async def list(self, resource: Resource, namespace: str | None, selector: str = "") -> Object:
        """Read all objects live: a consistent read, never an old cache of the server's."""
        return await self._ask("get", resource.path(namespace), {"labelSelector": selector} if selector else {})

    async def walk(self, resource: Resource, namespace: str | None, selector: str = "") -> tuple[int, Iterator[Object]]:
        """Read all objects live; return the version of the list, and the objects one by one.

        Thousands of them at once, as dictionaries, are a hundred megabytes that are given back to nobody.
        """
        query = {"labelSelector": selector} if selector else {}
        found = _read(await self._answer("get", resource.path(namespace), query, None, _JSON), _list)
        return int(found.metadata["resourceVersion"]), map(_object.decode, found.items or ())

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

    async def find(self, resource: Resource, namespace: str, name: str) -> Object | None:
        """Read one object live by the right to list, or nothing if it is not there."""
        found = await self._ask("get", resource.path(namespace), {"fieldSelector": f"metadata.name={name}"})
        return found["items"][0] if found.get("items") else None

    async def apply(
        self, manifest: Object, *, uid: str = "", version: str = "", manager: Manager = Manager.CHILDREN
    ) -> Object:
        """Apply the whole intent of ``manager``: to the object with ``uid``, at ``version``; to any if none is named.

        Raises:
            Conflict: the name is another object's, or nobody's if ``uid`` is named, or there is another version of it.
        """
        wanted = {name: value for name, value in {"uid": uid, "resourceVersion": version}.items() if value}
        return await self._apply({**manifest, "metadata": manifest["metadata"] | wanted}, None, manager)

    async def apply_anew(self, manifest: Object) -> Object:
        """Apply what is not there yet. To create it would make another entry of what we own, which no apply takes back.

        Raises:
            Conflict: an object of that name is there.
        """
        return await self.apply(manifest, version=_NO_VERSION)

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
    ) -> Object | None:
        """Delete the object of this name if it is still the one with ``uid``; return it if it is there a while longer.

        What goes at once is answered with a Status, or as it was, without a version.

        Raises:
            Conflict: another object has the name now.
        """
        body: Object = {"preconditions": {"uid": uid}}
        body |= {} if grace_s is None else {"gracePeriodSeconds": grace_s}
        left = await self._write("delete", resource.path(namespace, name), {}, body)
        return left if "resourceVersion" in left.get("metadata", {}) else None

    async def _apply(self, manifest: Object, subresource: str | None, manager: Manager) -> Object:
        meta = manifest["metadata"]
        path = resource_of(manifest).path(meta.get("namespace"), meta["name"], subresource)
        query = {"fieldManager": manager.value, "force": "true"}
        return await self._write("patch", path, query, manifest, _APPLY)

    async def _write(
        self, method: str, path: str, query: Mapping[str, str], body: Object, content_type: str = _JSON
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
        content_type: str = _JSON,
    ) -> Object:
        return _read(await self._answer(method, path, query or {}, body, content_type), _object)

    async def _answer(
        self, method: str, path: str, query: Mapping[str, str], body: Object | None, content_type: str
    ) -> bytes:
        try:
            return await self._request(method, path, query, body, content_type)
        except KubeError as error:
            if self._witness is not None:
                self._witness.erred(error)
            raise

    async def _request(
        self, method: str, path: str, query: Mapping[str, str], body: Object | None, content_type: str
    ) -> bytes:
        encoded = None if body is None else msgspec.json.encode(body)
        try:
            code, answer = await self._line.send(method, path, query, encoded, content_type)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise Unavailable(f"{method} {path}: {str(error) or type(error).__name__}") from error
        if not 200 <= code <= 299:
            raise error_of(code, answer.decode(errors="replace"))
        return answer


def _read(answer: bytes, into: "msgspec.json.Decoder[Answer]") -> Answer:
    try:
        return into.decode(answer)
    except msgspec.MsgspecError as error:
        raise Unavailable(f"what answers is no API server: {error}") from error


class Line:
    """One connection's address, credentials and open sockets."""

    def __init__(self, settings: Configuration, session: aiohttp.ClientSession) -> None:
        self._settings = settings
        self._session = session
        self._more: dict[str, Any] = {}
        if settings.proxy:
            self._more |= {"proxy": settings.proxy, "proxy_headers": settings.proxy_headers}
        if settings.tls_server_name:
            self._more["server_hostname"] = settings.tls_server_name

    async def send(
        self, method: str, path: str, query: Mapping[str, str], body: bytes | None, content_type: str
    ) -> tuple[int, bytes]:
        """Send one request; return the HTTP status and the body of the answer."""
        headers = {"accept": "application/json", "content-type": content_type}
        token = (await self._settings.auth_settings()).get("BearerToken")
        if token is not None and token["value"]:
            headers[token["key"]] = token["value"]
        url = self._settings.host + path
        async with self._session.request(
            method, url, params=query, data=body, headers=headers, timeout=_TIMEOUT, **self._more
        ) as response:
            return response.status, await response.read()


@asynccontextmanager
async def connected() -> AsyncIterator[Kube]:
    """Connect as the service account of this pod or, outside a cluster, as the kubeconfig says."""
    settings = Configuration()
    if _SERVICE_ACCOUNT.exists():
        config.load_incluster_config(client_configuration=settings)  # type: ignore[no-untyped-call]
    else:
        await config.load_kube_config(client_configuration=settings)  # type: ignore[no-untyped-call]
    async with connection(settings) as kube:
        yield kube


@asynccontextmanager
async def connection(settings: Configuration) -> AsyncIterator[Kube]:
    """Connect as ``settings`` have it; nothing is asked yet."""
    trusted = RESTClientObject(settings).ssl_context
    connector = aiohttp.TCPConnector(ssl=trusted, limit=_CONNECTIONS)
    # Where there is no proxy, to look for one takes a thread and a file with each request.
    async with aiohttp.ClientSession(
        connector=connector, trust_env=bool(getproxies()), read_bufsize=_READ_BUFFER
    ) as session:
        yield Kube(Line(settings, session))
