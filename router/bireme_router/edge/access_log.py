"""One JSON line per request: who asked what, and how it ended.

Lines hold no prompt, no answer and no key, only the key's name. The file is opened anew when it was moved away, so that
any log rotation works.
"""

import os
import sys
import time
from pathlib import Path

import msgspec

from bireme_router.edge.changed import Changed

_encode = msgspec.json.Encoder().encode


class Entry(msgspec.Struct, omit_defaults=True):
    """Times in Unix seconds and milliseconds; ``status`` 499: the client left first."""

    at: float
    request_id: str
    method: str
    path: str
    status: int
    duration_ms: float
    first_byte_ms: float | None = None
    bytes_in: int = 0
    bytes_out: int = 0
    model: str = ""
    stream: bool = False
    key: str = ""
    client: str = ""
    error: str = ""


class AccessLog:
    """Appends to a file, or to standard output for the path ``-``."""

    def __init__(self, path: Path) -> None:
        """Open it.

        Raises:
            OSError: it can't be opened.
        """
        self._path = path
        self._is_stdout = str(path) == "-"
        self._changed = Changed(path)
        self._descriptor = sys.stdout.fileno() if self._is_stdout else _open(path)

    def write(self, entry: Entry) -> None:
        """Append one line, in one write, so that lines of several processes never mix."""
        if not self._is_stdout and self._changed.is_due():
            self._follow_rotation()
        os.write(self._descriptor, _encode(entry) + b"\n")

    def close(self) -> None:
        """Close the file."""
        if not self._is_stdout:
            os.close(self._descriptor)

    def _follow_rotation(self) -> None:
        try:
            self._changed.look()
            moved = self._path.stat().st_ino != os.fstat(self._descriptor).st_ino
        except OSError:
            moved = True
        if moved:
            os.close(self._descriptor)
            self._descriptor = _open(self._path)


def _open(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o640)


def now() -> float:
    """Unix seconds, to the millisecond."""
    return round(time.time(), 3)
