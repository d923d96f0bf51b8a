"""Where an answer goes: to a client that reads a stream, or into one JSON object."""

from collections.abc import Mapping
from typing import Protocol

from aiohttp import web

from bireme_router.errors import RouterError


class Sink(Protocol):
    """One client's end of a request."""

    @property
    def congested(self) -> bool:
        """Whether the client is slower than the worker: ``drain`` before reading on."""

    async def write(self, events: list[bytes], headers: Mapping[str, str]) -> None:
        """Whole events; ``headers`` are the worker's, for the first write. Never waits for the client."""

    @property
    def open(self) -> bool:
        """Whether ``put`` may be used: the first write has been made."""

    def put(self, events: list[bytes]) -> None:
        """Whole events, at once."""

    async def drain(self) -> None:
        """Wait until the client has taken most of what was written."""

    async def finish(self) -> None:
        """The answer is complete."""

    async def finish_with(self, body: bytes, headers: Mapping[str, str]) -> None:
        """The answer is this object, as the worker wrote it."""

    async def fail(self, error: RouterError) -> None:
        """There will be no (more) answer."""

    @property
    def response(self) -> web.StreamResponse:
        """What the handler returns, after ``finish`` or ``fail``."""
