"""The processes of a container, found by a mark in their environment, as a cgroup would hold them.

A container ends with its first process: what it has left behind is killed then, like a PID namespace's other members.
Start them from a thread that lives as long as the fleet: the kernel ends the children of a thread that ends.
"""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from bireme.names import Env
from bireme.process import child_environment
from tests.controlplane import tether

MARK: Final = "FLEET_CONTAINER"
_TETHER: Final = tether.__file__
_PASSES: Final = 20


class Process:
    """The first process of a container; ``mark`` names the container on this machine."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], cwd: Path, log: Path, mark: str) -> None:
        self.mark = mark
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, _TETHER, *command],
                env={**_inherited(), **environment, MARK: mark},
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[int] = self._loop.create_future()
        self._pidfd = os.pidfd_open(self._process.pid)
        self._loop.add_reader(self._pidfd, self._reap)

    @property
    def pid(self) -> int:
        """The process id of the container's first process."""
        return self._process.pid

    @property
    def lives(self) -> bool:
        """Whether it has not ended."""
        return not self._ended.done()

    async def wait(self) -> int:
        """Wait for its end; returns the exit code, 128 + the signal's number after a signal."""
        return await asyncio.shield(self._ended)

    def terminate(self) -> None:
        """Ask it to end: SIGTERM for the first process alone, as container runtimes do."""
        if self.lives:
            self._process.terminate()

    def kill(self) -> None:
        """End all processes of the container now."""
        signal_all(self.mark, signal.SIGKILL)
        if self.lives:  # its mark is not to be seen before it has become the program
            self._process.kill()

    def _reap(self) -> None:
        code = self._process.poll()
        if code is None:
            return
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        signal_all(self.mark, signal.SIGKILL)
        self._ended.set_result(128 - code if code < 0 else code)


def _inherited() -> dict[str, str]:
    """This process's environment without what would tell a pod who runs the tests, or that it is somebody else."""
    ours = child_environment({})
    return {name: value for name, value in ours.items() if name == Env.PARENT_PID or not _is_private(name)}


def _is_private(name: str) -> bool:
    return name == "KUBECONFIG" or name.startswith(("BIREME_", "KUBERNETES_"))


def marked(prefix: str) -> list[int]:
    """Return the living processes of all containers whose mark begins with ``prefix``."""
    wanted = f"{MARK}={prefix}".encode()
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit() and _carries(entry, wanted)]


def state(pid: int) -> str:
    """Return the letter by which the kernel names what a process does (proc(5)), X for one that is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"


def signal_all(prefix: str, number: signal.Signals) -> None:
    """Signal all processes of the containers whose mark begins with ``prefix``, those just forked included."""
    reached: set[int] = set()
    for _ in range(_PASSES):
        new = set(marked(prefix)) - reached
        if not new:
            return
        for pid in new:
            _send(pid, number)
        reached |= new


def _send(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def _carries(entry: Path, wanted: bytes) -> bool:
    try:
        environment = (entry / "environ").read_bytes()
    except OSError:  # it has just ended, or belongs to somebody else
        return False
    return environment.startswith(wanted) or b"\0" + wanted in environment
