"""One `GET /watch` stream per group: every change as it happens, and a sign of life at each interval.

Silence of three intervals means that nothing is known about the group. A lost stream is dialled again, quickly at
first: a restarted leader should serve again within a fraction of a second.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final

import aiohttp

from bireme.names import Header
from bireme.wire.errors import WireError
from bireme.wire.state import StateDocument, read_state
from bireme_router.sse import LineSplitter

INTERVAL_S: Final = 1.0
SILENT_INTERVALS: Final = 3
_FIRST_BACKOFF_S: Final = 0.1
_LONGEST_BACKOFF_S: Final = 1.0


@dataclass(frozen=True)
class Silence:
    """Nothing is known about the group any more, and why."""

    reason: str


class WatchRefused(WireError):
    """The admin port answered with something else than a stream of state documents."""


async def watch(
    session: aiohttp.ClientSession, admin: str, token: str, interval_s: float = INTERVAL_S
) -> AsyncIterator[StateDocument | Silence]:
    """State documents as they come, ``Silence`` whenever the stream is lost; goes on until it is cancelled."""
    backoff = _FIRST_BACKOFF_S
    while True:
        try:
            async for document in _stream(session, admin, token, interval_s):
                backoff = _FIRST_BACKOFF_S
                yield document
            reason = "the leader ended its /watch"
        except TimeoutError:
            reason = f"the leader's /watch was silent for {SILENT_INTERVALS * interval_s:g} s"
        except (aiohttp.ClientError, OSError, WireError) as error:
            reason = f"the leader's /watch at {admin} is lost: {str(error) or type(error).__name__}"
        yield Silence(reason)
        await asyncio.sleep(backoff)
        backoff = min(2 * backoff, _LONGEST_BACKOFF_S)


async def _stream(
    session: aiohttp.ClientSession, admin: str, token: str, interval_s: float
) -> AsyncIterator[StateDocument]:
    limit = SILENT_INTERVALS * interval_s
    headers = {str(Header.TOKEN): f"Bearer {token}"}
    async with asyncio.timeout(limit):
        response = await session.get(f"{admin}/watch", params={"interval": f"{interval_s:g}"}, headers=headers)
    try:
        if response.status != 200:
            raise WatchRefused(f"it answered {response.status}")
        lines = LineSplitter()
        while True:
            async with asyncio.timeout(limit):
                data = await response.content.readany()
            if not data:
                return
            for line in lines.feed(data):
                if line.strip():
                    yield read_state(line)
    finally:
        response.close()
