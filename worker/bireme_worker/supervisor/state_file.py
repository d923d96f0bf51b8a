"""What a stage remembers over restarts of its container: one small file in the pod's state directory.

Written whole and renamed into place, so a reader sees the old content or the new one. The epoch is recorded before any
rank hears of it: a leader that comes back never opens the same epoch twice. When the disk is full the group goes on
all the same: the members remember the epoch too, and say it when they join.
"""

import contextlib
import logging
from pathlib import Path

import msgspec

from bireme.wire.control import Checkpoint

log = logging.getLogger(__name__)

STATE_FILE = "supervisor.json"
TERMINATION_FILE = "termination"


class Memory(msgspec.Struct, frozen=True):
    """The file's content. ``checkpoint`` None: the one in the environment."""

    stage: int
    incarnation: int
    last_epoch: int = 0
    checkpoint: Checkpoint | None = None


class Termination(msgspec.Struct, frozen=True):
    """Why the supervisor ended, for whoever started it."""

    exit_code: int
    reason: str
    message: str


class StateFile:
    """The memory of one pod; ``memory`` is what was read at the start or written last."""

    def __init__(self, folder: Path, stage: int, incarnation: int) -> None:
        self._path = folder / STATE_FILE
        self.memory = self._read(Memory(stage, incarnation))
        (folder / TERMINATION_FILE).unlink(missing_ok=True)

    def record(self, last_epoch: int, checkpoint: Checkpoint) -> None:
        """Remember an epoch and the weights that the group serves; a no-op when they are known.

        The highest committed generation stays: who still says a lower one has not heard of the commit yet.
        """
        known = self.memory
        if known.checkpoint is not None and known.checkpoint.generation > checkpoint.generation:
            checkpoint = known.checkpoint
        if last_epoch <= known.last_epoch and checkpoint == known.checkpoint:
            return
        last_epoch = max(last_epoch, known.last_epoch)
        self.memory = Memory(known.stage, known.incarnation, last_epoch, checkpoint)
        try:
            _write(self._path, msgspec.json.encode(self.memory))
        except OSError as error:
            log.error(f"{self._path} can't be written: {error}: free space there")  # noqa: TRY400  no bug of ours

    def _read(self, fresh: Memory) -> Memory:
        try:
            memory = msgspec.json.decode(self._path.read_bytes(), type=Memory)
        except (FileNotFoundError, msgspec.MsgspecError):
            return fresh
        same = (memory.stage, memory.incarnation) == (fresh.stage, fresh.incarnation)
        return memory if same else fresh


def leave_word(folder: Path, termination: Termination) -> None:
    """Say in the state directory why this process ends; without a usable directory stderr alone must do."""
    with contextlib.suppress(OSError):
        _write(folder / TERMINATION_FILE, msgspec.json.encode(termination))


def read_termination(folder: Path) -> Termination | None:
    """Why the supervisor of this state directory ended, or None."""
    try:
        return msgspec.json.decode((folder / TERMINATION_FILE).read_bytes(), type=Termination)
    except (FileNotFoundError, msgspec.MsgspecError):
        return None


def _write(path: Path, content: bytes) -> None:
    fresh = path.with_suffix(".new")
    fresh.write_bytes(content)
    fresh.replace(path)
