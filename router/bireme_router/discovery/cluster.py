"""Follows pods of one deployment in a cluster: list, watch for one period, list again.

The list is what makes it true: an event that got lost, or a watch that broke, is healed within one period. A read that
fails leaves the picture as it was; it is never taken for "no pods". The service account's token is read with every
request, because the kubelet renews it.
"""

import asyncio
import logging
import os
import random
import ssl
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Final

import aiohttp
import msgspec

from bireme.wire.errors import Garbled, WireError
from bireme_router.discovery.pods import Pod
from bireme_router.edge.errors import UnusableFile
from bireme_router.sse import LineSplitter

log = logging.getLogger(__name__)

PERIOD_S: Final = 20.0
"""Longest life of a lost event."""
_SLACK_S: Final = 5.0
_FIRST_BACKOFF_S: Final = 0.2
_LONGEST_BACKOFF_S: Final = 5.0


class _Version(msgspec.Struct, rename="camel"):
    resource_version: str = ""


class _Listed(msgspec.Struct):
    metadata: _Version
    items: list[Pod] = []


class _Event(msgspec.Struct):
    type: str
    object: Pod


_listed = msgspec.json.Decoder(_Listed)
_event = msgspec.json.Decoder(_Event)


class ApiRefused(WireError):
    """The API server answered with something else than what was asked."""


class Cluster:
    """The API server that this pod's environment names, as the service account in ``account``."""

    def __init__(
        self,
        namespace: str,
        account: Path,
        period_s: float = PERIOD_S,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        """Look for the server and for the certificate to trust.

        Raises:
            UnusableFile: one of them is not there.
        """
        host, port = environment.get("KUBERNETES_SERVICE_HOST", ""), environment.get("KUBERNETES_SERVICE_PORT", "443")
        if not host:
            raise UnusableFile("--pods needs a cluster: KUBERNETES_SERVICE_HOST is not set here")
        host = f"[{host}]" if ":" in host else host
        self.url = f"https://{host}:{port}/api/v1/namespaces/{namespace}/pods"
        self.account = account
        self.period_s = period_s
        try:
            self.tls = ssl.create_default_context(cafile=str(account / "ca.crt"))
        except OSError as error:
            raise UnusableFile(f"{account / 'ca.crt'} can't be used to trust the API server: {error}") from error

    async def follow(self, selector: str) -> AsyncIterator[list[Pod]]:
        """The pods with these labels, whenever any of them changed; goes on until it is cancelled."""
        backoff, complaint = _FIRST_BACKOFF_S, ""
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=self.tls)) as session:
            watched = _Watched(self, session, selector)
            while True:
                try:
                    async for pods in watched.period():
                        backoff, complaint = _FIRST_BACKOFF_S, ""
                        yield pods
                    continue
                except TimeoutError:
                    said = "no answer in time"
                except (aiohttp.ClientError, OSError, WireError) as error:
                    said = str(error) or type(error).__name__
                if said != complaint:
                    complaint = said
                    log.warning("pods with %s stay as they were, they can't be read: %s", selector, said)
                await asyncio.sleep(backoff * (0.5 + random.random()))  # noqa: S311  # routers must not come at once
                backoff = min(2 * backoff, _LONGEST_BACKOFF_S)


class _Watched:
    def __init__(self, cluster: Cluster, session: aiohttp.ClientSession, selector: str) -> None:
        self._cluster = cluster
        self._session = session
        self._selector = selector
        self._pods: dict[str, Pod] = {}

    async def period(self) -> AsyncIterator[list[Pod]]:
        """One list, and the changes of one period after it."""
        version = await self._list()
        yield list(self._pods.values())
        period_s = self._cluster.period_s
        query = {"watch": "1", "resourceVersion": version, "timeoutSeconds": f"{max(period_s, 1.0):.0f}"}
        lines = LineSplitter()
        async with asyncio.timeout(period_s + _SLACK_S), self._get(query) as response:
            self._check(response)
            while data := await response.content.readany():
                for line in lines.feed(data):
                    if not self._take(line):
                        return  # the version is too old: list again
                yield list(self._pods.values())

    async def _list(self) -> str:
        async with asyncio.timeout(_SLACK_S), self._get({}) as response:
            self._check(response)
            try:
                listed = _listed.decode(await response.read())
            except msgspec.MsgspecError as error:
                raise Garbled(f"no list of pods: {error}") from error
        self._pods = {pod.metadata.uid: pod for pod in listed.items}
        return listed.metadata.resource_version

    def _take(self, line: bytes) -> bool:
        """Whether the watch goes on after this event."""
        try:
            event = _event.decode(line)
        except msgspec.MsgspecError as error:
            raise Garbled(f"no event of a pod: {error}") from error
        match event.type:
            case "ADDED" | "MODIFIED":
                self._pods[event.object.metadata.uid] = event.object
            case "DELETED":
                self._pods.pop(event.object.metadata.uid, None)
            case "ERROR":
                return False
        return True

    def _get(self, query: dict[str, str]) -> "aiohttp.client._RequestContextManager":
        token = (self._cluster.account / "token").read_text(encoding="ascii").strip()
        return self._session.get(
            self._cluster.url,
            params={"labelSelector": self._selector, **query},
            headers={"authorization": f"Bearer {token}", "accept": "application/json"},
        )

    def _check(self, response: aiohttp.ClientResponse) -> None:
        if response.status == 410:
            raise ApiRefused("the watch is too old")
        if response.status != 200:
            raise ApiRefused(
                f"{self._cluster.url} answered {response.status}: may this service account list and watch pods?"
            )
