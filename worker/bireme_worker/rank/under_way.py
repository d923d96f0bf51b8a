"""Launched steps on their way to being results.

Both kinds are told when a launch begins and are given its handle; they keep ``progress.busy`` true while any step has
not come back, which is what the supervisor judges a hang by.
"""

import threading
from collections.abc import Callable
from queue import SimpleQueue
from types import TracebackType
from typing import Self

from bireme_worker.models.progress import Progress
from bireme_worker.parallel.errors import EpochEnded
from bireme_worker.parallel.gate import EpochGate
from bireme_worker.rank.runner import Handle

Finish = Callable[[Handle], None]


class AtOnce:
    """Finishes each step in the launching thread."""

    def __init__(self, finish: Finish, progress: Progress) -> None:
        self._finish = finish
        self._progress = progress

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is left over."""

    def begin(self) -> None:
        """A launch begins."""
        self._progress.busy = True

    def finish(self, handle: Handle, *, more: bool) -> None:
        """It has been launched; ``more``: the next plan is at hand."""
        self._finish(handle)
        self._progress.busy = more


class UnderWay:
    """Finishes steps in order in a thread of its own. What fails there ends the epoch and is raised on leaving."""

    def __init__(self, finish: Finish, gate: EpochGate, progress: Progress) -> None:
        self._finish = finish
        self._gate = gate
        self._progress = progress
        self._handles: SimpleQueue[Handle | None] = SimpleQueue()
        self._count = 0
        self._counting = threading.Lock()
        self._error: RuntimeError | None = None
        self._thread = threading.Thread(target=self._run, name="results", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait for what has been launched: the device must be idle before the next epoch forms."""
        self._handles.put(None)
        self._thread.join()
        if self._error is not None:
            raise self._error

    def begin(self) -> None:
        """A launch begins."""
        self._change(1)

    def finish(self, handle: Handle, *, more: bool) -> None:  # noqa: ARG002  the count says it
        """It has been launched."""
        self._handles.put(handle)

    def _run(self) -> None:
        while (handle := self._handles.get()) is not None:
            try:
                self._finish(handle)
            except EpochEnded as ended:
                self._gate.abort(str(ended))
            except RuntimeError as error:  # the device's own: this process is of no use any more
                self._error = self._error or error
                self._gate.abort(str(error))
            self._change(-1)

    def _change(self, by: int) -> None:
        with self._counting:
            self._count += by
            self._progress.busy = self._count > 0
