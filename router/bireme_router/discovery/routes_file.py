"""Reads the routes file again whenever it changes; a broken one never replaces a good one."""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Final

from bireme.wire.errors import Garbled
from bireme.wire.routes import Route, Routes, read_routes

log = logging.getLogger(__name__)

POLL_S: Final = 0.2
"""The file is renamed into place, so a look at its inode and time is enough, and cheap."""

_Mark = tuple[int, int, int]


async def follow_routes(path: Path) -> AsyncIterator[Routes]:
    """Each new content of the file, the present one first. Waits while there is no file."""
    seen: _Mark | None = None
    complaint = ""
    while True:
        try:
            mark = _mark(path)
            if mark != seen:
                routes = _read(path)
                seen, complaint = mark, ""
                yield routes
        except (OSError, Garbled) as error:
            if str(error) != complaint:
                complaint = str(error)
                log.warning("routes stay as they were, %s can't be read: %s", path, error)
        await asyncio.sleep(POLL_S)


def _mark(path: Path) -> _Mark:
    status = path.stat()
    return status.st_ino, status.st_mtime_ns, status.st_size


def _read(path: Path) -> Routes:
    return read_routes(path.read_bytes())


def read_tokens(routes: Iterable[Route]) -> dict[str, str]:
    """The group token of each pod, hex; a pod whose file can't be read is left out and the log says so."""
    tokens: dict[str, str] = {}
    for route in routes:
        try:
            tokens[route.pod] = Path(route.token_file).read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            log.warning("group %d gets no requests, its token can't be read: %s", route.index, error)
    return tokens
