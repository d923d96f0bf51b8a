"""`POST /profile` and `GET /profile/trace` of the admin port: the answer is the summary, a trace is asked for by rank.

The leader hands out the traces of all stages, so that whoever reaches one address (a port forward, say) has everything.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, Protocol

import aiohttp
import msgspec
from aiohttp import web

from bireme.names import Header, Port
from bireme.wire.profile import MOST_SECONDS, MOST_STEPS, ProfileReport, ProfileRequest
from bireme_worker.profiling.files import Place, is_profile, packed_file

LEAST_SECONDS: Final = 0.1
_FETCH_S: Final = 60.0


class Profiler(Protocol):
    """What the supervisor does for these routes."""

    async def profile(self, asked: ProfileRequest) -> ProfileReport:
        """Profile the group."""

    def trace_host(self, stage: int) -> str:
        """Which pod has the traces of that stage; nothing: this one."""


class BadAsk(Exception):
    """The request can't be meant; the message names the field."""


def checked(asked: ProfileRequest) -> ProfileRequest:
    """Return what can be done.

    Raises:
        BadAsk: it is out of bounds.
    """
    if not 0 <= asked.steps <= MOST_STEPS:
        raise BadAsk(f"steps is {asked.steps}: it must be from 1 to {MOST_STEPS}, or 0 to be bounded by seconds alone")
    if not (math.isfinite(asked.seconds) and LEAST_SECONDS <= asked.seconds <= MOST_SECONDS):
        raise BadAsk(f"seconds is {asked.seconds}: it must be from {LEAST_SECONDS:g} to {MOST_SECONDS:g}")
    return asked


class TraceRoute:
    """`GET /profile/trace?id=&stage=&rank=`. ``secret`` is the authorisation that other stages want."""

    def __init__(self, profiler: Profiler, state_dir: Path, secret: str) -> None:
        self._profiler = profiler
        self._state_dir = state_dir
        self._secret = secret

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        """One rank's packed trace."""
        profile, stage, rank = _asked_for(request)
        host = self._profiler.trace_host(stage)
        content = await (self._fetch(host, request.query_string) if host else self._read(profile, (stage, rank)))
        return web.Response(body=content, content_type="application/gzip")

    async def _read(self, profile: str, place: Place) -> bytes:
        try:
            return await asyncio.to_thread(packed_file(self._state_dir, profile, place).read_bytes)
        except FileNotFoundError:
            raise BadAsk(f"rank {place[1]} has no trace of profile {profile}: a newer one took its place") from None

    async def _fetch(self, host: str, query: str) -> bytes:
        url = f"http://{host}:{int(Port.ADMIN)}/profile/trace?{query}"
        timeout = aiohttp.ClientTimeout(total=_FETCH_S)
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout) as session,
                session.get(url, headers={Header.TOKEN.value: self._secret}) as answer,
            ):
                if answer.status != 200:
                    raise BadAsk(f"{host} does not hand it out: {await answer.text()}")
                return await answer.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise web.HTTPServiceUnavailable(text=f"{host} does not hand out its trace: {error}") from None


def profile_route(
    profiler: Profiler, body: Callable[[web.Request, type[ProfileRequest]], Awaitable[ProfileRequest]]
) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    """`POST /profile`; answers when the profile has ended. ``body`` reads a request's."""

    async def answer(request: web.Request) -> web.StreamResponse:
        report = await profiler.profile(checked(await body(request, ProfileRequest)))
        return web.Response(body=msgspec.json.encode(report), content_type="application/json")

    return answer


def _asked_for(request: web.Request) -> tuple[str, int, int]:
    profile, stage, rank = (request.query.get(key, "") for key in ("id", "stage", "rank"))
    if not is_profile(profile) or not stage.isdecimal() or not rank.isdecimal():
        raise BadAsk("id, stage and rank are needed, as the answer of POST /profile has them")
    return profile, int(stage), int(rank)
