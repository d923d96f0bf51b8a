"""Bytes of a worker's answer go to a callback as the parser cuts them, without waking a task for every token.

aiohttp hands a body out through a ``StreamReader``: a buffer, a future and a task's turn for each piece, a third of
what relaying a token costs. While a stream flows this replaces the reader's methods for feeding, and nothing else of
aiohttp: the parser, the connection and its pool stay, and while the task looks, the reader holds back as ever. What is
not public in aiohttp and that we rest on is in this file; where it looks otherwise, ``possible`` is false and the
ordinary way of reading is taken.
"""

import asyncio
import inspect
from collections.abc import Callable
from typing import Any, Final

from aiohttp import StreamReader

OnData = Callable[[bytes], bool]
"""Takes a piece; false: no more of it now, the task has to look."""


class Flow:
    """One body while it goes straight to ``on_data``."""

    __slots__ = ("_content", "_on_data", "_waiter")

    def __init__(self, content: StreamReader, on_data: OnData) -> None:
        self._content = content
        self._on_data = on_data
        self._waiter: asyncio.Future[None] | None = None

    async def until_stopped(self) -> None:
        """Return when ``on_data`` said false, or at the end of the body.

        Raises:
            aiohttp.ClientError: the connection broke.
        """
        content: Any = self._content
        while kept := content.read_nowait():  # reading lets a parser go on that was held back, so there may be more
            if not self._on_data(kept):
                return
        if content.is_eof():
            return
        self._waiter = asyncio.get_running_loop().create_future()
        splits = content._http_chunk_splits  # noqa: SLF001
        content._http_chunk_splits = self  # noqa: SLF001  # the one slot that feeding directly leaves free
        content.__class__ = _Direct
        try:
            await self._waiter
        finally:
            content.__class__ = StreamReader
            content._http_chunk_splits = splits  # noqa: SLF001
        if (error := content.exception()) is not None:
            raise error

    def feed(self, data: bytes) -> None:
        """A piece, from the parser."""
        if not self._on_data(data):
            self.stop()

    def stop(self) -> None:
        """Let the task look."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class _Direct(StreamReader):
    __slots__ = ()

    def feed_data(self, data: bytes, size: int = 0) -> bool:  # noqa: ARG002  # older parsers give it
        if data:
            _flow(self).feed(data)
        return False

    def begin_http_chunk_receiving(self) -> None:
        """Where chunks begin means nothing here."""

    def end_http_chunk_receiving(self) -> None:
        """Nor where they end."""

    def feed_eof(self) -> None:
        flow = _flow(self)
        super().feed_eof()
        flow.stop()

    def set_exception(self, exc: BaseException, *cause: BaseException) -> None:
        flow = _flow(self)
        super().set_exception(exc, *cause)
        flow.stop()


def _flow(content: Any) -> Flow:
    flow: Flow = content._http_chunk_splits  # noqa: SLF001
    return flow


def _fits() -> bool:
    methods = ("feed_data", "feed_eof", "set_exception", "begin_http_chunk_receiving", "end_http_chunk_receiving")
    return "_http_chunk_splits" in getattr(StreamReader, "__slots__", ()) and all(
        inspect.isfunction(getattr(StreamReader, name, None)) for name in methods
    )


POSSIBLE: Final = _fits()


def possible(content: StreamReader) -> bool:
    """Whether this body can be had directly."""
    return POSSIBLE and type(content) is StreamReader
