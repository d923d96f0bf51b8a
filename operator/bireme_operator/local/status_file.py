"""status.json: the object as `kubectl get -o json` would show it, and under ``local`` who is who on this machine.

Written when something in it changed, at most once in 100 ms, and renamed into place. What can't be written (a full
disk) is written later: nobody's stream ends for it.
"""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from bireme_operator.local.rundir import replace_file

log = logging.getLogger(__name__)

_SHORTEST_S: Final = 0.1
_AFTER_FAILURE_S: Final = 1.0


class StatusFile:
    """Holds back what comes too soon; the caller asks ``flush`` again when ``due`` says so."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._written = b""
        self._pending: bytes | None = None
        self._next_at = float("-inf")

    def offer(self, content: Mapping[str, Any], now: float) -> None:
        """Take the newest content, and write it if it is different and time."""
        encoded = msgspec.json.format(msgspec.json.encode(content), indent=1)
        self._pending = None if encoded == self._written else encoded
        if self._pending is not None and self._next_at <= now:
            self._write(self._pending, now)

    @property
    def due(self) -> float | None:
        """When the content that is held back may be written."""
        return None if self._pending is None else self._next_at

    def flush(self, now: float) -> None:
        """Write what is held back, whatever the time."""
        if self._pending is not None:
            self._write(self._pending, now)

    def _write(self, content: bytes, now: float) -> None:
        try:
            replace_file(self._path, content)
        except OSError as error:
            log.warning("the status can't be written, it is tried again: %s", error)
            self._next_at = now + _AFTER_FAILURE_S
        else:
            self._written, self._next_at, self._pending = content, now + _SHORTEST_S, None
