"""A kubelet's connection to the API server, which a test can cut and mend.

Cutting drops what is under way, as a firewall between node and control plane does; the node's processes notice nothing.
"""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Coroutine, Mapping
from typing import Any, Final, TypeVar

import aiohttp

from tests.controlplane.cluster import ControlPlane

T = TypeVar("T")

Object = dict[str, Any]
"""A Kubernetes object as JSON has it."""

STRATEGIC: Final = "application/strategic-merge-patch+json"
MERGE: Final = "application/merge-patch+json"

_WATCH_SECONDS: Final = 30
_LONGEST_LINE: Final = 4 * 1024 * 1024


class Unreachable(Exception):
    """The API server can't be reached from this node, or did not answer: try again."""


class ApiRefused(Exception):
    """The API server answered with an error; ``status`` is its HTTP code."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"the API server answered {status}: {message}")
        self.status = status


class NodeApi:
    """Requests of one node. Every method raises `Unreachable` while the connection is cut."""

    def __init__(self, plane: ControlPlane) -> None:
        self.url = plane.url
        self._headers = {"authorization": f"Bearer {plane.users.admin.token}", "user-agent": "fleet-kubelet"}
        self._trusted = ssl.create_default_context(cafile=str(plane.files.authority))
        self._session: aiohttp.ClientSession | None = None
        self._severed = asyncio.Event()

    async def cut(self) -> None:
        """Drop every connection and refuse new ones."""
        self._severed.set()
        await self.close()

    async def mend(self) -> None:
        """Let requests through again."""
        self._severed.clear()

    async def close(self) -> None:
        """Drop every connection."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def get(self, path: str) -> Object:
        """Return the object or list at ``path``."""
        return await self._call("GET", path)

    async def post(self, path: str, body: Object) -> Object:
        """Make an object."""
        return await self._call("POST", path, body)

    async def patch(self, path: str, body: Object, kind: str = MERGE) -> Object:
        """Change an object; returns it as it is then."""
        return await self._call("PATCH", path, body, kind)

    async def delete(self, path: str, options: Object | None = None) -> Object:
        """Delete an object."""
        return await self._call("DELETE", path, options)

    async def watch(self, path: str, query: Mapping[str, str]) -> AsyncIterator[tuple[str, Object]]:
        """Yield (type, object) until the server ends the watch, which it does after half a minute at the latest."""
        words = {**query, "watch": "1", "timeoutSeconds": str(_WATCH_SECONDS)}
        limit = aiohttp.ClientTimeout(total=None, sock_read=_WATCH_SECONDS + 10)
        try:
            async with self._connected().get(self.url + path, params=words, timeout=limit) as response:
                await _judge(response)
                while line := await self._unless_cut(response.content.readline()):
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        return
                    yield event["type"], event["object"]
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise Unreachable(str(error)) from None

    async def _call(self, method: str, path: str, body: Object | None = None, kind: str = "application/json") -> Object:
        return await self._unless_cut(self._request(method, path, body, kind))

    async def _request(self, method: str, path: str, body: Object | None, kind: str) -> Object:
        data = None if body is None else json.dumps(body)
        headers = {"content-type": kind}
        try:
            async with self._connected().request(method, self.url + path, data=data, headers=headers) as response:
                await _judge(response)
                answer: Object = await response.json()
                return answer
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise Unreachable(str(error)) from None

    async def _unless_cut(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for ``work``; a cut ends it, which closing its connection alone does not tell a reader."""
        working, severed = asyncio.create_task(work), asyncio.create_task(self._severed.wait())
        try:
            await asyncio.wait({working, severed}, return_when=asyncio.FIRST_COMPLETED)
            # What a reader says of a connection that was cut under it is not worth telling apart.
            if working.done() and not (self._severed.is_set() and working.exception()):
                return working.result()
            raise Unreachable("the node was partitioned from the API server")
        finally:
            for task in (working, severed):
                task.cancel()
            await asyncio.wait({working, severed})

    def _connected(self) -> aiohttp.ClientSession:
        if self._severed.is_set():
            raise Unreachable("the node is partitioned from the API server")
        if self._session is None:
            self._session = aiohttp.ClientSession(
                headers=self._headers,
                connector=aiohttp.TCPConnector(ssl=self._trusted, limit=0),
                timeout=aiohttp.ClientTimeout(total=10),
                read_bufsize=_LONGEST_LINE,
            )
        return self._session


async def _judge(response: aiohttp.ClientResponse) -> None:
    if response.status >= 400:
        raise ApiRefused(response.status, (await response.text())[:500])
