"""What each API key used, told to the other routers and heard from them, so that limits and fairness are those of all.

Every process of `--processes` and every replica in a cluster keeps one stream of increments to each of the others, a
tenth of a second behind. What is used while two can't hear one another is counted by one of them only: limits get
looser then, nothing is refused for it.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Final

import aiohttp
import msgspec
from aiohttp import web

from bireme_router.sse import LineSplitter

log = logging.getLogger(__name__)

EVERY_S: Final = 0.1
_SIGN_OF_LIFE_S: Final = 1.0
_SILENCE_S: Final = 5.0
_AGAIN_S: Final = 0.5

Used = tuple[int, float]
"""Requests and tokens."""

_heard = msgspec.json.Decoder(dict[str, Used])


class Usage:
    """This router's own increments. ``apply`` takes those of others: key, requests, tokens."""

    def __init__(self, apply: Callable[[str, int, float], None]) -> None:
        self._apply = apply
        self._listeners: list[dict[str, Used]] = []

    def note(self, key: str, requests: int, tokens: float) -> None:
        """A key used so much more here (tokens may be negative when a guess is settled)."""
        for pending in self._listeners:
            before = pending.get(key, (0, 0.0))
            pending[key] = before[0] + requests, before[1] + tokens

    def hear(self, line: bytes) -> None:
        """Increments of another router."""
        for key, (requests, tokens) in _heard.decode(line).items():
            self._apply(key, requests, tokens)

    async def told(self) -> AsyncIterator[bytes]:
        """Increments as they come, one line each, and a sign of life in between."""
        pending: dict[str, Used] = {}
        self._listeners.append(pending)
        quiet_s = _SIGN_OF_LIFE_S
        try:
            while True:
                if pending or quiet_s >= _SIGN_OF_LIFE_S:
                    yield msgspec.json.encode(pending) + b"\n"
                    pending.clear()
                    quiet_s = 0.0
                await asyncio.sleep(EVERY_S)
                quiet_s += EVERY_S
        finally:
            self._listeners.remove(pending)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """`GET /usage`."""
        response = web.StreamResponse(headers={"content-type": "application/x-ndjson"})
        await response.prepare(request)
        with contextlib.suppress(ConnectionError):
            async for line in self.told():
                await response.write(line)
        return response

    async def follow(self, session: aiohttp.ClientSession, url: str, headers: Mapping[str, str]) -> None:
        """Hear one other router until cancelled."""
        complaint = ""
        while True:
            try:
                await self._hear_all(session, url, headers)
                complaint = ""
            except (aiohttp.ClientError, OSError, TimeoutError, msgspec.MsgspecError) as error:
                if (said := str(error) or type(error).__name__) != complaint:
                    complaint = said
                    log.info("the usage of the router at %s is not heard: %s", url, said)
            await asyncio.sleep(_AGAIN_S)

    async def _hear_all(self, session: aiohttp.ClientSession, url: str, headers: Mapping[str, str]) -> None:
        async with asyncio.timeout(_SILENCE_S):
            response = await session.get(url, headers=headers)
        try:
            response.raise_for_status()
            log.info("the usage of the router at %s is heard", url)
            lines = LineSplitter()
            while True:
                async with asyncio.timeout(_SILENCE_S):
                    data = await response.content.readany()
                if not data:
                    return
                for line in lines.feed(data):
                    self.hear(line)
        finally:
            response.close()
