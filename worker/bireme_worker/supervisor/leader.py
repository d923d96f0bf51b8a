"""The leader: the control port, the conversations with the stages, and the hands of the membership machine.

Whatever happens becomes one event for ``Membership``; whatever it wants done is done here, in its order, before the
next event. Nothing here decides.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from bireme.names import Port
from bireme.wire.control import BEAT_INTERVAL_S, Beat, ControlMessage, Hello, Profiled, RankBeat, control_codec
from bireme.wire.errors import Garbled, WireError
from bireme.wire.frames import Channel
from bireme_worker.coordinator.messages import CoordinatorKinds
from bireme_worker.identity import Identity
from bireme_worker.supervisor import events as ev
from bireme_worker.supervisor.link import Link
from bireme_worker.supervisor.membership import Group, Membership, Phase
from bireme_worker.supervisor.profiling import Profiling
from bireme_worker.supervisor.state_file import StateFile, Termination
from bireme_worker.supervisor.watch import Watch

log = logging.getLogger(__name__)

_HANDSHAKE_S = 5.0


@dataclass
class _Peer:
    """One conversation. ``heard``: when its last message came."""

    link: Link
    heard: float
    stage: int


class Leader:
    """Runs on stage 0. ``to_coordinator`` hears what the membership tells the coordinator."""

    def __init__(
        self,
        identity: Identity,
        file: StateFile,
        watch: Watch,
        to_coordinator: Callable[[CoordinatorKinds], None],
        on_change: Callable[[], None],
    ) -> None:
        checkpoint = file.memory.checkpoint or identity.checkpoint
        group = Group(
            identity.group,
            identity.stages,
            identity.tensor,
            identity.incarnation,
            identity.plan_address,
            checkpoint,
            identity.http_processes,
        )
        self.membership = Membership(group, watch.limits, file.memory.last_epoch, watch.now())
        self.ranks: dict[int, tuple[RankBeat, ...]] = {}
        self.profiling = Profiling(identity.group, identity.stages, identity.tensor, self._tell_stages)
        self._token = identity.token
        self._file = file
        self._watch = watch
        self._to_coordinator = to_coordinator
        self._on_change = on_change
        self._peers: dict[int, _Peer] = {}
        self._connections = 0
        self._last_beat = watch.now()
        self._told = ""

    async def listen(self, host: str) -> asyncio.Server:
        """Open the control port."""
        return await asyncio.start_server(self._accept, host, Port.CONTROL)

    async def converse(self, link: Link) -> None:
        """One conversation with a stage, to its end."""
        self._connections += 1
        connection, text = self._connections, "the conversation ended"
        try:
            async with asyncio.timeout(_HANDSHAKE_S):
                hello = await link.receive()
            if not isinstance(hello, Hello):
                raise Garbled(f"expected a Hello, got {type(hello).__name__}")
            self._peers[connection] = _Peer(link, self._watch.now(), hello.stage)
            self.apply(ev.Joined(connection, hello))
            if self.membership.seat_of(connection) is not None:
                self.ranks.pop(hello.stage, None)
            while True:
                self._hear(connection, await link.receive())
        except WireError as error:
            text = str(error)
        except TimeoutError:
            text = f"no Hello within {_HANDSHAKE_S:g} s"
        finally:
            link.close()
            self._forget(connection, text)

    def apply(self, event: ev.Event) -> None:
        """Feed the membership and do what it wants."""
        for effect in self.membership.handle(event, self._watch.now()):
            self._do(effect)
        standing = self.membership.standing
        serves = self.membership.phase is Phase.SERVING
        self.profiling.look(self.membership.epoch if serves else 0, standing.message or standing.reason)
        self._log_standing()
        self._on_change()

    def tick(self) -> None:
        """Send the Beat that is due, drop silent stages, let time pass for the membership."""
        now = self._watch.now()
        for connection, peer in list(self._peers.items()):
            silence = now - peer.heard
            if silence > self._watch.limits.peer_silent_s:
                peer.link.abort()
                self._forget(connection, f"no word for {silence:.1f} s")
        if now - self._last_beat >= BEAT_INTERVAL_S:
            self._last_beat = now
            for peer in self._peers.values():
                peer.link.send(Beat())
        self.apply(ev.Tick())

    def heard_s(self, connection: int) -> float | None:
        """Seconds since the last word over a connection, or None."""
        peer = self._peers.get(connection)
        return None if peer is None else self._watch.now() - peer.heard

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        channel: Channel[ControlMessage] = Channel(reader, writer, control_codec)
        peer = writer.get_extra_info("peername")
        try:
            async with asyncio.timeout(_HANDSHAKE_S):
                await channel.accept(self._token)
        except (WireError, TimeoutError) as error:
            log.warning(f"refused a connection from {peer}: {error!r}")
            channel.abort()
            return
        await self.converse(channel)

    def _hear(self, connection: int, message: ControlMessage) -> None:
        peer = self._peers.get(connection)
        if peer is None:
            raise Garbled("this conversation is over")
        peer.heard = self._watch.now()
        if isinstance(message, Beat):
            if self.membership.seat_of(connection) is not None:
                self.ranks[peer.stage] = message.ranks
                self._on_change()
        elif isinstance(message, Profiled):
            self.profiling.hear(peer.stage, message)
        else:
            self.apply(ev.Said(connection, message))

    def _tell_stages(self, message: ControlMessage) -> None:
        for connection, peer in self._peers.items():
            if self.membership.seat_of(connection) is not None:
                peer.link.send(message)

    def _forget(self, connection: int, text: str) -> None:
        peer = self._peers.pop(connection, None)
        seat = self.membership.seat_of(connection)
        if seat is not None:
            self.ranks.pop(seat.stage, None)
            log.warning(f"stage {seat.stage} is lost: {text}")
        elif peer is not None:
            log.info(f"a conversation with stage {peer.stage} ended: {text}")
        self.apply(ev.Left(connection, text))

    def _do(self, effect: ev.Effect) -> None:
        match effect:
            case ev.Send(connection, message):
                if peer := self._peers.get(connection):
                    peer.link.send(message)
            case ev.Drop(connection, text):
                log.warning(text)
                if peer := self._peers.pop(connection, None):
                    peer.link.close()
            case ev.ToCoordinator(message):
                self._to_coordinator(message)
            case ev.Record(epoch):
                self._file.record(epoch, self.membership.checkpoint)
            case ev.GiveUp(exit_code, reason, text):
                self._watch.end(Termination(exit_code, reason, text))

    def _log_standing(self) -> None:
        standing, reload = self.membership.standing, self.membership.reloading.state
        text = f"epoch {standing.epoch}: {standing.state}/{standing.reason} {standing.message}"
        if reload.model_revision:
            text += f"; reload to {reload.model_revision}: {reload.phase} {reload.message}"
        if text != self._told:
            self._told = text
            log.info(text)
