"""The rank processes of a stage: started, listened to, watched for progress, started again.

What a rank says or suffers goes to a listener (the member), which owns the stage's state machine; this file owns
processes and sockets only.
"""

import asyncio
import contextlib
import logging
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from bireme.names import Reason
from bireme.wire.control import Beat, Become, ControlMessage, RankBeat, Stop, control_codec
from bireme.wire.errors import ConnectionLost, WireError
from bireme_worker.supervisor.child import TalkingChild, exit_text, start_talking
from bireme_worker.supervisor.progress import RankProgress, Verdict, judge
from bireme_worker.supervisor.restarts import Restarts
from bireme_worker.supervisor.spare import Spare
from bireme_worker.supervisor.stage import RankPhase
from bireme_worker.supervisor.watch import Watch

log = logging.getLogger(__name__)

_LAST_WORDS_S: Final = 0.2
"""What a dead rank had sent is read at once; longer waits mean that somebody else holds its socket."""
_LEAVE_S: Final = 1.0
"""A rank that closed its conversation has this long to exit by itself, so that its exit code is its own."""


class RankListener(Protocol):
    """Who is told about the ranks."""

    def rank_up(self, rank: int) -> None:
        """A process was started."""

    def rank_down(self, rank: int, reason: str, text: str) -> None:
        """The process ended."""

    def rank_said(self, rank: int, message: ControlMessage) -> None:
        """The process sent a message other than a Beat."""

    def rank_heard(self, rank: int) -> None:
        """The process sent a Beat."""

    def rank_judged(self, rank: int, verdict: Verdict, text: str) -> None:
        """The progress rule found the process silent or stuck."""


@dataclass
class _Slot:
    """One rank's place. ``blame``: why we killed it, if we did. ``proved``: this process served for a while."""

    rank: int
    restarts: Restarts
    running: TalkingChild[ControlMessage] | None = None
    progress: RankProgress | None = None
    blame: tuple[str, str] | None = None
    proved: bool = False


class RankPool:
    """``tensor`` rank processes. ``command`` starts one; ``--rank R --control-fd N`` is appended.

    With ``spare`` one more is kept warm, without ``--rank``; it is told its rank by ``Become``.
    """

    def __init__(
        self, tensor: int, command: Sequence[str], watch: Watch, listener: RankListener, *, spare: bool = True
    ) -> None:
        self._command = list(command)
        self._watch = watch
        self._listener = listener
        self._slots = [_Slot(rank, Restarts(f"rank {rank}", watch)) for rank in range(tensor)]
        self._spare = Spare(command, watch) if spare else None
        self._stopping = False

    async def run(self) -> None:
        """Keep all ranks running until ``stop``."""
        await asyncio.gather(*(self._keep(slot) for slot in self._slots))

    def send(self, rank: int, message: ControlMessage) -> None:
        """Send to a rank; a rank that is gone does not hear it."""
        running = self._slots[rank].running
        if running is not None:
            running.channel.send(message)

    def kill(self, rank: int, reason: str, text: str) -> None:
        """SIGKILL a rank; its end is reported with this reason."""
        slot = self._slots[rank]
        if slot.running is not None and slot.blame is None:
            log.error(f"killing rank {rank}: {text}")
            slot.blame = (reason, text)
            slot.running.child.signal(signal.SIGKILL)

    def enter(self, rank: int, phase: RankPhase) -> None:
        """The stage's state machine moved this rank to ``phase``."""
        if progress := self._slots[rank].progress:
            progress.enter(phase, self._watch.now())

    def tick(self) -> None:
        """Apply the progress rule."""
        now = self._watch.now()
        if self._spare is not None:
            self._spare.tick(wanted=not self._stopping and all(map(_serves, self._slots)))
        for slot in self._slots:
            if slot.progress is None or slot.blame is not None:
                continue
            serving = slot.progress.phase is RankPhase.SERVING
            slot.proved |= serving and now - slot.progress.since >= self._watch.limits.stable_s
            verdict, text = judge(slot.progress, self._watch.limits, now)
            if verdict is Verdict.KILL:
                self.kill(slot.rank, Reason.HUNG, text)
            elif verdict is not Verdict.FINE:
                self._listener.rank_judged(slot.rank, verdict, f"rank {slot.rank}: {text}")

    def pid(self, rank: int) -> int:
        """The process of a rank, or 0."""
        running = self._slots[rank].running
        return running.child.pid if running is not None else 0

    def restarts(self, rank: int) -> int:
        """How often a rank was started after the first time."""
        return self._slots[rank].restarts.total

    def beat(self, rank: int) -> tuple[RankBeat | None, float]:
        """A rank's last Beat and its step age in seconds."""
        progress = self._slots[rank].progress
        if progress is None:
            return None, 0.0
        return progress.beat, progress.step_age(self._watch.now())

    async def stop(self, reason: str) -> None:
        """End all ranks and start none again."""
        self._stopping = True
        running = [slot.running for slot in self._slots if slot.running is not None]
        for talking in running:
            talking.channel.send(Stop(reason))
            talking.child.signal(signal.SIGCONT)  # a stopped rank could not hear it
        if self._spare is not None:
            await self._spare.stop()
        await asyncio.gather(*(talking.child.stop(self._watch.limits.stop_s) for talking in running))

    async def _keep(self, slot: _Slot) -> None:
        while not self._stopping:
            running = await self._start(slot.rank)
            slot.running, slot.progress = running, RankProgress.started(self._watch.now())
            slot.blame, slot.proved = None, False
            log.info(f"rank {slot.rank} runs as process {running.child.pid}")
            self._listener.rank_up(slot.rank)
            code = await self._accompany(slot, running)
            slot.running = slot.progress = None
            last_line = running.child.last_line
            reason, text = _cause(slot, exit_text(code, last_line))
            if not self._stopping:
                log.warning(f"rank {slot.rank} ended: {text}")
                self._listener.rank_down(slot.rank, reason, f"rank {slot.rank}: {text}")
                await asyncio.sleep(slot.restarts.ended(code, last_line, slot.proved, slot.blame))

    async def _start(self, rank: int) -> TalkingChild[ControlMessage]:
        warm = self._spare.take() if self._spare is not None else None
        if warm is None:
            return await start_talking([*self._command, "--rank", str(rank)], control_codec)
        warm.channel.send(Become(rank))
        return warm

    async def _accompany(self, slot: _Slot, running: TalkingChild[ControlMessage]) -> int:
        """Listen until the process has ended; what it said last is heard before its end is told."""
        listening = asyncio.ensure_future(self._listen(slot, running))
        ended = asyncio.ensure_future(running.child.wait())
        try:
            await asyncio.wait((listening, ended), return_when=asyncio.FIRST_COMPLETED)
            if running.child.alive:
                return await running.child.stop(_LEAVE_S)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LAST_WORDS_S):
                    await listening
            return await running.child.wait()
        finally:
            ended.cancel()
            running.channel.abort()

    async def _listen(self, slot: _Slot, running: TalkingChild[ControlMessage]) -> None:
        try:
            while True:
                message = await running.channel.receive()
                if not isinstance(message, Beat):
                    self._listener.rank_said(slot.rank, message)
                elif message.ranks and slot.progress is not None:
                    slot.progress.hear(message.ranks[0], self._watch.now())
                    self._listener.rank_heard(slot.rank)
        except ConnectionLost:
            return
        except WireError as error:
            self.kill(slot.rank, Reason.RANK_LOST, f"spoke another language: {error}")


def _serves(slot: _Slot) -> bool:
    return slot.progress is not None and slot.progress.phase is RankPhase.SERVING


def _cause(slot: _Slot, text: str) -> tuple[str, str]:
    return slot.blame if slot.blame is not None else (Reason.RANK_LOST, text)
