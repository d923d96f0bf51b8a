"""What `bireme reload` asks of a running `bireme up`: a file in the run directory, then a SIGUSR1.

The file is renamed into place before the signal, so `up` reads it whole; the answer is the status.
"""

from pathlib import Path
from signal import SIGUSR1
from typing import Final

import msgspec

from bireme_operator.local.rundir import replace_file

SIGNAL: Final = SIGUSR1


class Wish(msgspec.Struct, frozen=True):
    """Serve the checkpoint at ``path`` (as the deployment would name it) under the name ``revision``."""

    path: str
    revision: str
    mode: str


def write_wish(path: Path, wish: Wish) -> None:
    """Put the file into place."""
    replace_file(path, msgspec.json.encode(wish))


def read_wish(path: Path) -> Wish | None:
    """Return what is asked for, None when nothing readable is there."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Wish)
    except (FileNotFoundError, msgspec.MsgspecError):
        return None
