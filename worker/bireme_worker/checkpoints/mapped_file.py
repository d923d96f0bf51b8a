"""One file mapped into memory for reading, with its size checked before every use.

A mapping of a file that somebody cut short kills the process with SIGBUS; the size check turns all but a sliver of
that into an error that names the file.
"""

import mmap
import os
from pathlib import Path

from bireme_worker.checkpoints.errors import CheckpointError, CorruptFile, MissingFile, TruncatedFile


class MappedFile:
    """``data`` is a private mapping: pages are shared with every other rank, nothing is ever written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                self._descriptor = os.dup(file.fileno())
        except FileNotFoundError:
            raise MissingFile(f"{path} is missing: copy the checkpoint again") from None
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
        self.size = os.fstat(self._descriptor).st_size
        try:
            # ACCESS_COPY because torch warns about buffers that cannot be written; it costs nothing as nobody writes.
            self.data = mmap.mmap(self._descriptor, 0, access=mmap.ACCESS_COPY)
        except ValueError:
            os.close(self._descriptor)
            raise CorruptFile(f"{path} is empty: copy it again") from None

    def need(self, size: int) -> None:
        """Raise TruncatedFile unless the mapping and the file have ``size`` bytes now."""
        now = min(self.size, os.fstat(self._descriptor).st_size)
        if now < size:
            raise TruncatedFile(f"{self.path} is {now} bytes, its header needs {size}: copy it again")

    def close(self) -> None:
        self.data.close()
        os.close(self._descriptor)
