"""What the command line asks of a running `bireme up`: a file in the run directory, then a SIGUSR1.

Each wish is a file of its own, renamed into place before the signal and taken away by `up`, which obeys in the order of
asking; two that come at once are both heard. The answer is the status.
"""

import time
from pathlib import Path
from signal import SIGUSR1
from typing import Final

import msgspec

from bireme_operator.local.rundir import replace_file

SIGNAL: Final = SIGUSR1


class Wish(msgspec.Struct, frozen=True, tag="reload"):
    """Serve the checkpoint at ``path`` (as the deployment would name it) under the name ``revision``."""

    path: str
    revision: str
    mode: str


class Restart(msgspec.Struct, frozen=True, tag="restart"):
    """Make every group anew, within the limits of a rollout; ``value`` is that of the restart annotation."""

    value: str


class RollBack(msgspec.Struct, frozen=True, tag="rollback"):
    """Want the pods and the checkpoint of an earlier revision again, by its number."""

    number: int


class Pause(msgspec.Struct, frozen=True, tag="pause"):
    """Leave everything as it is."""


class Resume(msgspec.Struct, frozen=True, tag="resume"):
    """Go on, and try again what has failed; ``value`` is that of the resume annotation."""

    value: str


AnyWish = Wish | Restart | RollBack | Pause | Resume

_decoder: msgspec.json.Decoder[AnyWish] = msgspec.json.Decoder(AnyWish)


def write_wish(directory: Path, wish: AnyWish) -> None:
    """Put the file into place."""
    replace_file(directory / f"{time.time_ns()}.json", msgspec.json.encode(wish))


def take_wishes(directory: Path) -> list[AnyWish]:
    """Return what is asked for, oldest first, and take it away; what can't be read was none of ours."""
    found: list[AnyWish] = []
    for path in sorted(directory.glob("*.json")):
        try:
            found.append(_decoder.decode(path.read_bytes()))
        except (FileNotFoundError, msgspec.MsgspecError):
            continue
        finally:
            path.unlink(missing_ok=True)
    return found
