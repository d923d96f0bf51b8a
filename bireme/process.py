"""Processes that end with their parent, so that a SIGKILL higher up leaves nothing behind.

Linux sends the chosen signal when the parent *thread* ends, so parents must spawn from their main thread. A child calls
``die_with_parent`` first thing; the environment tells it which parent to expect, which closes the race with a parent
that died before the call.
"""

import ctypes
import os
import signal
import sys
from typing import Final

from bireme.names import Env

_PR_SET_PDEATHSIG: Final = 1


def child_environment(extra: dict[str, str]) -> dict[str, str]:
    """The environment for a child of this process: ours, ``extra``, and who its parent is."""
    return {**os.environ, **extra, Env.PARENT_PID: str(os.getpid())}


def die_with_parent(number: signal.Signals = signal.SIGKILL) -> None:
    """Ask the kernel to send ``number`` to this process when its parent ends; exit at once if it already has.

    Does nothing where no parent announced itself (PID 1 of a container, a shell).
    """
    expected = os.environ.get(Env.PARENT_PID)
    if expected is None:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != int(expected):
        sys.exit(f"the parent process {expected} is gone")
