"""One builder at a time: a lock that the kernel frees when its holder dies, and a word to whoever waits for it."""

import fcntl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

Say = Callable[[str], None]
"""Takes one line of progress."""


@contextmanager
def locked(path: Path, say: Say) -> Iterator[None]:
    """Hold the lock file ``path``, waiting as long as another process builds."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another process builds the control plane: waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
