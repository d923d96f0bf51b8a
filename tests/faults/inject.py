"""The faults: signals, cut connections, a full disk. Each says in words what it did; none touches anything but its target.

A stopped process is always continued again by ``stopped``; the supervisor may have killed it by then.
"""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from bireme.names import Port
from tests.faults.parts import Part

PLAN, CONTROL, DATA = "plan", "control", "data"
CONNECTIONS = {PLAN: (Port.PLAN,), CONTROL: (Port.CONTROL,), DATA: tuple(Port.DATA + rank for rank in range(4))}


def kill(part: Part) -> bool:
    """SIGKILL; False when it was gone already."""
    return _signal(part.pid, signal.SIGKILL)


def _signal(pid: int, number: signal.Signals) -> bool:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
        return True
    return False


@contextlib.contextmanager
def stopped(part: Part) -> Iterator[None]:
    """SIGSTOP for the block, then SIGCONT: a process that hangs."""
    _signal(part.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        _signal(part.pid, signal.SIGCONT)


def stop_for(part: Part, seconds: float) -> None:
    """Stop for a time."""
    with stopped(part):
        time.sleep(seconds)


def cut(address: str, kind: str) -> int:
    """Reset every established connection of that kind at ``address``; returns how many there were."""
    count = 0
    for port in CONNECTIONS[kind]:
        found = subprocess.run(
            ["ss", "-K", "-H", "-tn", "state", "established", "src", f"{address}:{int(port)}"],
            capture_output=True,
            text=True,
            check=True,
        )
        count += len(found.stdout.splitlines())
    return count


def can_cut() -> bool:
    """Whether this kernel lets us reset connections."""
    return os.geteuid() == 0 and subprocess.run(["ss", "-K", "-H", "-tn", "src", "127.255.255.254"]).returncode == 0


@contextlib.contextmanager
def small_disk(path: Path, kilobytes: int) -> Iterator[Path]:
    """A tmpfs of that size at ``path``."""
    path.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "none", str(path)], check=True)
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


def fill(path: Path) -> Path:
    """Write a file until nothing more fits; returns it, so that removing it makes room."""
    ballast = path / "ballast"
    with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
        while file.write(bytes(4096)):
            pass
    return ballast
