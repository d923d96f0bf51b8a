"""The client wants one JSON object: the worker's events are put together into it."""

from collections.abc import Mapping

import msgspec
from aiohttp import web

from bireme.names import Header
from bireme_router.chunks import Aggregate
from bireme_router.errors import GroupsLost, RouterError
from bireme_router.headers import returned
from bireme_router.sse import payload_of
from bireme_router.stream import error_response


class UnarySink:
    """See ``Sink``."""

    congested = False

    def __init__(self, request_id: str) -> None:
        self._request_id = request_id
        self._aggregate = Aggregate()
        self._headers: Mapping[str, str] = {}
        self._response: web.Response | None = None

    async def write(self, events: list[bytes], headers: Mapping[str, str]) -> None:
        """Add whole events."""
        self._headers = headers
        self.put(events)

    @property
    def open(self) -> bool:
        """Whether the worker's headers are known."""
        return bool(self._headers)

    def put(self, events: list[bytes]) -> None:
        """Add whole events."""
        for event in events:
            payload = payload_of(event)
            if payload in (b"", b"[DONE]"):
                continue
            try:
                self._aggregate.add(msgspec.json.decode(payload))
            except (msgspec.MsgspecError, KeyError, TypeError, AttributeError) as error:
                raise GroupsLost(f"the group sent an event that is no completion chunk: {error}") from error

    async def drain(self) -> None:
        """Nothing is written before the end."""

    async def finish(self) -> None:
        """Make the object."""
        await self.finish_with(msgspec.json.encode(self._aggregate.whole()), self._headers)

    async def finish_with(self, body: bytes, headers: Mapping[str, str]) -> None:
        """The object is there already."""
        kept = returned(headers) | {"content-type": "application/json", Header.REQUEST_ID: self._request_id}
        kept.pop("cache-control", None)
        self._response = web.Response(body=body, headers=kept)

    async def fail(self, error: RouterError) -> None:
        """An HTTP status."""
        self._response = error_response(error, self._request_id)

    @property
    def response(self) -> web.StreamResponse:
        """The answer, after ``finish`` or ``fail``."""
        if self._response is None:
            raise RuntimeError("the answer was asked for before it was complete")
        return self._response
