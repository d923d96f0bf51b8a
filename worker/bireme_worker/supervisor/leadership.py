"""What only stage 0 has: the leader, the coordinator and the HTTP processes, wired to one another."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from bireme.names import Env, Port
from bireme.wire.control import Address
from bireme.wire.state import StageState
from bireme_worker.identity import Identity
from bireme_worker.supervisor import events as ev
from bireme_worker.supervisor.children import CoordinatorKeeper, FrontKeeper
from bireme_worker.supervisor.document import rank_states
from bireme_worker.supervisor.leader import Leader
from bireme_worker.supervisor.link import local_pair
from bireme_worker.supervisor.member import Member
from bireme_worker.supervisor.state_file import StateFile
from bireme_worker.supervisor.watch import Watch


@dataclass(frozen=True)
class Commands:
    """How the child processes are started; their own options are appended."""

    rank: Sequence[str]
    coordinator: Sequence[str]
    http: Sequence[str]


class Leadership:
    """Stage 0's extra parts."""

    def __init__(
        self, identity: Identity, commands: Commands, file: StateFile, watch: Watch, on_change: Callable[[], None]
    ) -> None:
        self._watch = watch
        self._on_change = on_change
        self._changed = asyncio.Event()
        self._http_processes = identity.http_processes
        self.coordinator = CoordinatorKeeper(commands.coordinator, self._checkpoint, watch, self._tell)
        self.front = FrontKeeper(
            commands.http, self._checkpoint, Address(identity.pod_ip, Port.HTTP), watch, self._tell
        )
        self.leader = Leader(identity, file, watch, self.coordinator.send, self._note)

    def works(self, member: Member) -> list[Awaitable[None]]:
        """What runs for as long as the supervisor does; ``member`` is stage 0's own."""
        return [self._converse(member), self.coordinator.run(), self.front.run(self._http_processes)]

    def tick(self) -> None:
        """Time has passed."""
        self.leader.tick()
        self.coordinator.tick()

    def stages(self, own: StageState) -> tuple[StageState, ...]:
        """Every stage as the leader last heard of it; ``own`` is known first hand."""
        return (own, *(self._stage(stage) for stage in range(1, len(self.leader.membership.seats))))

    async def drained(self) -> None:
        """Wait until no request is left."""
        while not self.leader.membership.drained:
            self._changed.clear()
            await self._changed.wait()

    async def stop(self) -> None:
        """Finish the answers under way, end the epoch, end the processes."""
        await self.front.stop()
        self.leader.apply(ev.Quit())
        await self.coordinator.stop()

    def _checkpoint(self) -> dict[str, str]:
        served = self.leader.membership.checkpoint
        return {Env.MODEL_PATH: served.source, Env.MODEL_REVISION: served.model_revision}

    def _tell(self, event: ev.Event) -> None:
        self.leader.apply(event)

    def _note(self) -> None:
        self._changed.set()
        self._on_change()

    def _stage(self, stage: int) -> StageState:
        seat = self.leader.membership.seats[stage]
        heard = self.leader.heard_s(seat.connection)
        ranks = rank_states(self.leader.ranks.get(stage, ()), {}) if seat.present else ()
        age = heard if heard is not None else self._watch.now() - seat.since
        return StageState(stage, seat.incarnation, seat.boot, round(age, 3), ranks)

    async def _converse(self, member: Member) -> None:
        while True:
            above, below = local_pair()
            await asyncio.gather(self.leader.converse(above), member.converse(below))
