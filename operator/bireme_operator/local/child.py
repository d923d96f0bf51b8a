"""One process of ours: its end is known at once, its output goes to a log, it dies when we die.

The kernel tells the end through a pidfd, so no thread and no polling is needed. A session of its own keeps the
terminal's Ctrl-C away from it: we decide in which order things stop.
"""

import asyncio
import os
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from signal import Signals

from bireme.process import child_environment


class Child:
    """A running process; ``wait`` returns its exit code (negative: the signal)."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        # Linux sends the parent-death signal when the *thread* that forked ends (see bireme.process).
        assert threading.current_thread() is threading.main_thread()
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                command,
                env=child_environment(dict(environment)),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._pidfd = os.pidfd_open(self._process.pid)
        asyncio.get_running_loop().add_reader(self._pidfd, self._reap)

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    async def wait(self) -> int:
        """Wait for the end and return the exit code."""
        return await asyncio.shield(self._ended)

    def signal(self, number: Signals) -> None:
        """Send a signal; does nothing after the end."""
        if not self._ended.done():
            self._process.send_signal(number)

    def _reap(self) -> None:
        code = self._process.poll()
        if code is None:
            return
        asyncio.get_running_loop().remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._ended.set_result(code)
