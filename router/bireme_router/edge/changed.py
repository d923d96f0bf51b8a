"""Whether a file was replaced or rewritten, at the price of one stat per second at most.

Files here are Secrets and lists that somebody renews while the router runs: nothing restarts for them.
"""

import time
from pathlib import Path
from typing import Final

LOOK_S: Final = 1.0


class Changed:
    """Looks at one path; ``True`` the first time, and whenever what is there differs from the last look."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._looked_at = float("-inf")
        self._mark: tuple[int, int, int] | None = None

    def is_due(self) -> bool:
        """Whether enough time has passed for another look."""
        return time.monotonic() - self._looked_at >= LOOK_S

    def look(self) -> bool:
        """Whether it changed since the last look.

        Raises:
            OSError: there is no such file, or it may not be read.
        """
        self._looked_at = time.monotonic()
        status = self._path.stat()
        mark = (status.st_ino, status.st_mtime_ns, status.st_size)
        before, self._mark = self._mark, mark
        return mark != before
