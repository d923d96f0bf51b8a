"""The line between a rank and its supervisor: commands come in by one thread, heartbeats go out by another.

The main thread may be blocked in a step when End or Stop arrives, so the thread that reads them frees it by closing the
epoch's gate, then queues the command. A closed line means that the supervisor is gone: the rank ends at once.
"""

import os
import threading
import time
from queue import SimpleQueue

from bireme.names import Exit
from bireme.wire.control import BEAT_INTERVAL_S, Beat, ControlMessage, Discard, End, Profile, RankBeat, Stage, Stop
from bireme.wire.errors import WireError
from bireme.wire.frames import SocketChannel
from bireme_worker.models.progress import Progress
from bireme_worker.parallel.gate import EpochGate


class Control:
    """``inbox`` receives every command in order; ``send`` is for any thread.

    What concerns the next weights or a profile goes to ``asides`` at once instead: the main thread serves meanwhile.
    """

    def __init__(self, channel: SocketChannel[ControlMessage], rank: int, progress: Progress) -> None:
        self.inbox: SimpleQueue[ControlMessage] = SimpleQueue()
        self.asides: SimpleQueue[Stage | Discard | Profile] = SimpleQueue()
        self._channel = channel
        self._rank = rank
        self._progress = progress
        self._sending = threading.Lock()
        self._gates = threading.Lock()
        self._gate: EpochGate | None = None
        self._ended = 0
        self._stopped = False

    def start(self) -> None:
        """Start reading and beating."""
        for target, name in ((self._read, "control"), (self._beat, "beat")):
            threading.Thread(target=target, name=name, daemon=True).start()

    def send(self, message: ControlMessage) -> None:
        """Send to the supervisor; if it is gone, the reading thread ends this process."""
        try:
            with self._sending:
                self._channel.send(message)
        except WireError:
            self._leave()

    def open_gate(self, epoch: int) -> EpochGate:
        """The gate of a new epoch; shut already if that epoch's End or a Stop came before this rank got to its Form."""
        gate = EpochGate(epoch)
        with self._gates:
            self._gate = gate
            over = self._stopped or epoch <= self._ended
        if over:
            gate.abort("ended before it was formed")
        return gate

    def was_ended(self, epoch: int) -> bool:
        """Whether the supervisor itself has ended ``epoch``: then it needs no report of the loss."""
        with self._gates:
            return self._stopped or epoch <= self._ended

    def _read(self) -> None:
        while True:
            try:
                message = self._channel.receive()
            except WireError:
                self._leave()
            if isinstance(message, Stage | Discard | Profile):
                self.asides.put(message)
                continue
            if isinstance(message, End):
                self._abort(message.epoch, message.reason)
            elif isinstance(message, Stop):
                self._stopped = True
                self._abort(None, message.reason)
            self.inbox.put(message)

    def _abort(self, epoch: int | None, reason: str) -> None:
        with self._gates:
            self._ended = max(self._ended, epoch or 0)
            gate = self._gate
        if gate is not None and (epoch is None or gate.epoch <= epoch):
            gate.abort(reason)

    def _beat(self) -> None:
        progress = self._progress
        while True:
            beat = RankBeat(
                rank=self._rank,
                alive=True,
                phase=progress.phase,
                epoch=progress.epoch,
                step=progress.step,
                layers=progress.layers,
                busy=progress.busy,
            )
            self.send(Beat((beat,)))
            time.sleep(BEAT_INTERVAL_S)

    def _leave(self) -> None:
        """The supervisor is gone. The main thread may be in a step that nobody will end: leave without it."""
        os._exit(Exit.PEER_LOST)
