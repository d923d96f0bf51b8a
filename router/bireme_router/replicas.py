"""The other replicas of this router in a cluster, found by their pods: each is heard for what API keys use there.

Who holds the token of the first group may listen: that is every router of the deployment and nobody else. With TLS the
certificate names the Service and not the pod, so it is not looked at; the stream holds names and counts only.
"""

import asyncio
import hashlib
import hmac
import logging
from pathlib import Path
from typing import Final

import aiohttp
from aiohttp import web

from bireme.names import Header
from bireme_router.discovery.cluster import Cluster
from bireme_router.discovery.pods import ROUTER, addresses, selector
from bireme_router.usage import Usage

log = logging.getLogger(__name__)

PATH: Final = "/replica/usage"
_PURPOSE: Final = b"bireme router usage"


class Replicas:
    """See ``follow`` and ``answer``; ``own`` is the address of this one."""

    def __init__(self, usage: Usage, token: Path, own: str, base: str) -> None:
        """``base``: scheme and port of all of them, as ``https://{host}:8080``."""
        self._usage = usage
        self._token = token
        self._own = own
        self._base = base

    async def follow(self, cluster: Cluster, deployment: str) -> None:
        """Keep one stream to every other replica, until cancelled."""
        streams: dict[str, asyncio.Task[None]] = {}
        connector = aiohttp.TCPConnector(ssl=False)
        async with aiohttp.ClientSession(connector=connector) as session, asyncio.TaskGroup() as tasks:
            async for pods in cluster.follow(selector(deployment, ROUTER)):
                others = set(addresses(pods)) - {self._own}
                for gone in streams.keys() - others:
                    streams.pop(gone).cancel()
                for new in others - streams.keys():
                    host = f"[{new}]" if ":" in new else new
                    url = self._base.format(host=host) + PATH
                    streams[new] = tasks.create_task(self._usage.follow(session, url, self.headers()))

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """What keys use here, for who proves to be a router of this deployment."""
        proved = request.headers.get(Header.TOKEN, "").encode("utf-8", "surrogateescape")
        if not hmac.compare_digest(proved, self.headers()[Header.TOKEN].encode()):
            return web.Response(status=401)
        return await self._usage.answer(request)

    def headers(self) -> dict[str, str]:
        """What proves that a router of this deployment asks."""
        secret = self._token.read_bytes().strip()
        return {str(Header.TOKEN): "Bearer " + hmac.new(secret, _PURPOSE, hashlib.sha256).hexdigest()}
