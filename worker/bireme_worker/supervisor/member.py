"""A stage's member of the group: its ranks below, its leader above, the stage's state machine between them.

Every stage runs one; on stage 0 the leader is in the same process. The member dials the leader again and again until
the wait limit, and obeys a new address (`POST /leader`) at once.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bireme.names import Exit, GroupState, Port, Reason
from bireme.wire.control import (
    BEAT_INTERVAL_S,
    Beat,
    ControlMessage,
    Hello,
    Leaving,
    Profile,
    Profiled,
    RankBeat,
    Standing,
    Superseded,
    control_codec,
)
from bireme.wire.errors import WireError
from bireme.wire.frames import open_channel
from bireme_worker.identity import Identity
from bireme_worker.supervisor.link import Link
from bireme_worker.supervisor.progress import Verdict
from bireme_worker.supervisor.ranks import RankPool
from bireme_worker.supervisor.stage import Action, Fatal, Kill, RankPhase, Stage, ToLeader, ToRank
from bireme_worker.supervisor.standing import RETRY_AFTER_S
from bireme_worker.supervisor.state_file import StateFile, Termination
from bireme_worker.supervisor.watch import Watch

log = logging.getLogger(__name__)

_DIAL_LIMIT_S = 2.0
_DIAL_FIRST_S = 0.1
_DIAL_MOST_S = 1.0


@dataclass(frozen=True)
class Boot:
    """This making of the supervisor process, and what the last one left."""

    name: str
    file: StateFile
    returned: bool


class Member:
    """One stage. ``on_change`` is called after everything that a state document could show."""

    def __init__(
        self, identity: Identity, boot: Boot, command: Sequence[str], watch: Watch, on_change: Callable[[], None]
    ) -> None:
        memory = boot.file.memory
        checkpoint = memory.checkpoint or identity.checkpoint
        self.stage = Stage(identity.tensor, checkpoint, memory.last_epoch)
        self.pool = RankPool(identity.tensor, command, watch, self, spare=identity.spare_rank)
        self.leader_host = identity.leader
        self.leader_incarnation = 0
        self.leader_heard = watch.now()
        self.superseded_by = 0
        self._standing: Standing | None = None
        self._identity = identity
        self._boot = boot
        self._watch = watch
        self._on_change = on_change
        self._link: Link | None = None
        self._redial = asyncio.Event()
        self._changed = asyncio.Event()
        self._last_beat = watch.now()

    # -- the ranks' side (RankListener) ---------------------------------------------------------------------------

    def rank_up(self, rank: int) -> None:
        """A process was started."""
        self._perform(self.stage.rank_up(rank))

    def rank_down(self, rank: int, reason: str, text: str) -> None:
        """A process ended."""
        self._perform(self.stage.rank_down(rank, reason, text))

    def rank_said(self, rank: int, message: ControlMessage) -> None:
        """A rank sent a message."""
        if isinstance(message, Profiled):
            if self._link is not None:
                self._link.send(message)
            return
        self._perform(self.stage.rank_said(rank, message))

    def rank_heard(self, rank: int) -> None:
        """A Beat came; worth a look only if the rank had been silent."""
        if self.stage.ranks[rank].silent:
            log.info(f"rank {rank} is back")
            self._perform(self.stage.rank_heard(rank))

    def rank_judged(self, rank: int, verdict: Verdict, text: str) -> None:
        """The progress rule found a rank silent or stuck."""
        known = self.stage.ranks[rank].silent
        actions = self.stage.rank_silent(rank, text) if verdict is Verdict.SILENT else self.stage.rank_stuck(rank, text)
        if not known:
            log.warning(text)
        self._perform(actions)

    # -- the leader's side ----------------------------------------------------------------------------------------

    async def dial(self) -> None:
        """Talk to the leader over TCP; again after each loss, until superseded."""
        failures, told = 0, ""
        while not self.superseded_by:
            self._redial.clear()
            try:
                link = await open_channel(
                    self.leader_host, Port.CONTROL, self._identity.token, control_codec, _DIAL_LIMIT_S
                )
            except WireError as error:
                failures += 1
                if str(error) != told:
                    told = str(error)
                    log.warning(f"the leader can't be reached: {told}")
                await self._pause(min(_DIAL_FIRST_S * 2.0 ** min(failures, 10), _DIAL_MOST_S))
                continue
            failures, told = 0, ""
            await self.converse(link)
            await self._pause(_DIAL_FIRST_S)

    async def converse(self, link: Link) -> None:
        """One conversation with the leader, to its end."""
        self._link, self.leader_heard = link, self._watch.now()
        try:
            link.send(self._hello())
            self._perform(self.stage.connect())
            while True:
                self._hear(await link.receive())
        except WireError as error:
            if not self.superseded_by:
                log.warning(f"epoch {self.stage.epoch}: the leader is lost: {error}")
        finally:
            link.abort()
            self._link = self._standing = None
            self._perform(self.stage.disconnect())

    def follow(self, address: str, incarnation: int) -> None:
        """`POST /leader`: dial this address from now on; an older incarnation than the known one is ignored."""
        if incarnation < self.leader_incarnation:
            return
        self.leader_incarnation = incarnation
        if address != self.leader_host:
            log.info(f"the leader is at {address} now, incarnation {incarnation}")
            self.leader_host = address
            self._redial.set()
            if self._link is not None:
                self._link.abort()

    def ask_to_leave(self, deadline_s: float) -> bool:
        """Ask the leader to drain the group; False when there is no leader to ask."""
        if self._link is None:
            return False
        self._link.send(Leaving(deadline_s))
        return True

    async def left(self) -> None:
        """Wait until no rank of this stage is in an epoch."""
        while self.stage.epoch:
            self._changed.clear()
            await self._changed.wait()

    def tick(self) -> None:
        """Send the Beat that is due, apply the progress rule and the limits of silence."""
        now, limits = self._watch.now(), self._watch.limits
        self.pool.tick()
        if self._link is not None:
            if now - self.leader_heard > limits.peer_silent_s:
                log.warning(f"no word from the leader for {now - self.leader_heard:.1f} s")
                self._link.abort()
            elif now - self._last_beat >= BEAT_INTERVAL_S:
                self._send_beat()
        elif now - self.leader_heard > limits.rejoin_s and not self.superseded_by:
            text = f"the leader at {self.leader_host} stayed away for more than {limits.rejoin_s:g} s"
            self._watch.end(Termination(Exit.PEER_LOST, Reason.LEADER_LOST, text))

    @property
    def standing(self) -> Standing:
        """What this stage knows of the group: the leader's word, unless something nearer says worse."""
        told, epoch = self._standing, self.stage.epoch or self.stage.last_epoch
        if self.superseded_by:
            text = f"incarnation {self.superseded_by} of this stage exists; waiting to be deleted"
            return _standing(epoch, GroupState.FAILED, Reason.SUPERSEDED, text)
        if told is None:
            return self._alone(epoch)
        if told.state == GroupState.SERVING and self.stage.serving != told.epoch:
            return _standing(epoch, GroupState.RECOVERING, *self.stage.cause)
        return told

    def _alone(self, epoch: int) -> Standing:
        text = f"waits for the leader at {self.leader_host}:{int(Port.CONTROL)}"
        if self._boot.returned or self.stage.last_epoch:
            return _standing(epoch, GroupState.RECOVERING, Reason.LEADER_LOST, text)
        loading = any(seat.phase is RankPhase.LOADING for seat in self.stage.ranks)
        return _standing(epoch, GroupState.STARTING, Reason.LOADING if loading else Reason.RENDEZVOUS, text)

    def beats(self) -> tuple[RankBeat, ...]:
        """The ranks as the stage sees them, for the leader's state document."""
        return tuple(self._beat(rank) for rank in range(len(self.stage.ranks)))

    async def stop(self, reason: str) -> None:
        """End the ranks."""
        await self.pool.stop(reason)

    def _hello(self) -> Hello:
        identity, stage = self._identity, self.stage
        data = tuple(identity.data_address(rank) for rank in range(identity.tensor))
        loaded = stage.checkpoint if stage.loaded else None
        return Hello(
            identity.group,
            identity.stage,
            identity.incarnation,
            self._boot.name,
            stage.last_epoch,
            data,
            loaded,
            stage.checkpoint,
        )

    def _hear(self, message: ControlMessage) -> None:
        self.leader_heard = self._watch.now()
        match message:
            case Beat():
                return
            case Standing():
                self._standing = message
                self._on_change()
            case Superseded(by):
                self._give_way(by)
            case Profile():
                for rank in range(self._identity.tensor):
                    self.pool.send(rank, message)
            case _:
                self._perform(self.stage.leader_said(message))

    def _give_way(self, by: int) -> None:
        log.error(f"superseded by incarnation {by}: closing the ports")
        self.superseded_by = by
        self._stopping = asyncio.ensure_future(self.pool.stop(Reason.SUPERSEDED))

    def _perform(self, actions: list[Action]) -> None:
        self._boot.file.record(self.stage.last_epoch, self.stage.checkpoint)
        for action in actions:
            match action:
                case ToRank(rank, message):
                    self.pool.send(rank, message)
                case ToLeader(message):
                    if self._link is not None:
                        self._link.send(message)
                case Kill(rank, reason, text):
                    self.pool.kill(rank, reason, text)
                case Fatal(exit_code, reason, text):
                    self._watch.end(Termination(exit_code, reason, text))
        for seat in self.stage.ranks:
            self.pool.enter(seat.rank, seat.phase)
        self._send_beat()
        self._changed.set()
        self._on_change()

    def _send_beat(self) -> None:
        self._last_beat = self._watch.now()
        if self._link is not None:
            self._link.send(Beat(self.beats()))

    def _beat(self, rank: int) -> RankBeat:
        seat, (beat, _) = self.stage.ranks[rank], self.pool.beat(rank)
        alive = seat.phase is not RankPhase.DOWN and not seat.silent
        step, layers, busy = (beat.step, beat.layers, beat.busy) if beat is not None else (0, 0, False)
        return RankBeat(rank, alive, seat.phase, seat.epoch, step, layers, busy, self.pool.pid(rank), seat.loads)

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._redial.wait()


def _standing(epoch: int, state: GroupState, reason: str, message: str) -> Standing:
    return Standing(epoch, state, reason, message, RETRY_AFTER_S[state])
