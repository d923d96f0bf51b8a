"""Why a pod's process ended, for people: its termination message, else the end of its log, else the signal."""

from pathlib import Path
from signal import Signals

import msgspec

_TAIL_BYTES = 4096
_LONGEST = 500


class _Termination(msgspec.Struct, frozen=True):
    """What a stage leaves in its state directory (the file is also a container's terminationMessagePath)."""

    exit_code: int
    message: str
    reason: str = ""


def last_words(state_dir: Path, log: Path, code: int) -> str:
    """Return one sentence about an end with exit code ``code`` (negative: a signal)."""
    left = _read(state_dir / "termination")
    if left is not None and left.exit_code == code and left.message:
        return left.message
    if code < 0:
        return f"ended by {signal_name(-code)}"
    return _last_line(log) if code else "ended as asked"


def signal_name(number: int) -> str:
    """Return SIGKILL for 9, and so on."""
    try:
        return Signals(number).name
    except ValueError:
        return f"signal {number}"


def _read(path: Path) -> _Termination | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=_Termination)
    except (OSError, msgspec.MsgspecError):
        return None


def _last_line(log: Path) -> str:
    with log.open("rb") as file:
        file.seek(max(file.seek(0, 2) - _TAIL_BYTES, 0))
        lines = [line.strip() for line in file.read().decode(errors="replace").splitlines()]
    told = next((line for line in reversed(lines) if line), "no word in its log")
    return f"{told[:_LONGEST]} (log: {log})"
