"""The switch that ends an epoch on this rank, from any thread and at any moment.

A thread that is blocked in a socket call cannot be asked to stop. Shutting its socket down makes the call return at
once, so every socket of an epoch is registered here, from the first dial on.
"""

import contextlib
import socket
import threading
from collections.abc import Callable

from bireme_worker.parallel.errors import EpochEnded


class EpochGate:
    """Open while the epoch lasts. ``abort`` is for any thread; ``close`` is for the thread that used the sockets."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.reason = ""
        self.aborted = False
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self._callbacks: list[Callable[[], None]] = []

    def adopt(self, sock: socket.socket) -> None:
        """Shut ``sock`` down when the epoch ends.

        Raises:
            EpochEnded: it has ended already; the socket is closed.
        """
        with self._lock:
            if not self.aborted:
                self._sockets.append(sock)
                return
        sock.close()
        self.check()

    def on_abort(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` once when the epoch ends, at once if it has: it wakes whoever waits without a socket."""
        with self._lock:
            if not self.aborted:
                self._callbacks.append(callback)
                return
        callback()

    def abort(self, reason: str) -> None:
        """End the epoch; frees every blocked call at once. The first reason stays."""
        with self._lock:
            if self.aborted:
                return
            self.reason = reason
            self.aborted = True
            for sock in self._sockets:
                with contextlib.suppress(OSError):  # the peer was faster
                    sock.shutdown(socket.SHUT_RDWR)
            callbacks = self._callbacks
        for callback in callbacks:
            callback()

    def check(self) -> None:
        """Raise EpochEnded after an abort."""
        if self.aborted:
            raise EpochEnded(f"epoch {self.epoch} has ended: {self.reason}")

    def close(self) -> None:
        """Give the sockets back. Closing frees descriptor numbers, so nobody may be inside a call on them."""
        self.abort("closed")
        for sock in self._sockets:
            sock.close()
