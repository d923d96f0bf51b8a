"""The supervisor of one stage pod: every stage has a member and an admin port, stage 0 also leads.

It ends in one way only: somebody calls ``end`` with an exit code and a message, and the children go first.
"""

import asyncio
import logging
import secrets
import signal
from collections.abc import Awaitable, Sequence

from aiohttp import web

from bireme.names import Exit, GroupState, Port, Reason
from bireme.wire.control import Standing
from bireme.wire.profile import ProfileReport, ProfileRequest
from bireme.wire.state import ReloadRequest, ReloadState, StageState, StateDocument
from bireme_worker.coordinator.messages import Abort, Status
from bireme_worker.identity import Identity
from bireme_worker.supervisor import events as ev
from bireme_worker.supervisor.admin import Admin, Refused, start_admin
from bireme_worker.supervisor.child import reap_orphans
from bireme_worker.supervisor.clock import TICK_S, WatchedClock
from bireme_worker.supervisor.document import Board, build, rank_states
from bireme_worker.supervisor.leadership import Commands, Leadership
from bireme_worker.supervisor.limits import Limits
from bireme_worker.supervisor.member import Boot, Member
from bireme_worker.supervisor.membership import Phase
from bireme_worker.supervisor.metrics import Readings, exposition
from bireme_worker.supervisor.ports import await_free_ports, needed_ports
from bireme_worker.supervisor.profiling import ProfileFailed
from bireme_worker.supervisor.state_file import StateFile, Termination
from bireme_worker.supervisor.watch import Watch

log = logging.getLogger(__name__)

_HANDOVER_GRACE_S = 5.0
"""How long after a drain's deadline the last words may take."""


class Supervisor:
    """One stage pod."""

    def __init__(self, identity: Identity, limits: Limits, commands: Commands) -> None:
        loop = asyncio.get_running_loop()
        self.identity = identity
        self._clock = WatchedClock(loop.time())
        self._ended: asyncio.Future[Termination] = loop.create_future()
        self._watch = Watch(self._clock, limits, self._end)
        self._file = StateFile(identity.state_dir, identity.stage, identity.incarnation)
        returned = self._file.memory.last_epoch > 0
        self._boot = Boot(secrets.token_hex(8), self._file, returned)
        self.board = Board(self._document)
        self.member = Member(identity, self._boot, commands.rank, self._watch, self._refresh)
        self._leadership: Leadership | None = None
        if identity.is_leader:
            self._leadership = Leadership(identity, commands, self._file, self._watch, self._refresh)
        self._leaving: asyncio.Task[None] | None = None

    async def run(self) -> Termination:
        """Run to the end and say why it came.

        Raises:
            BadIdentity: a port of this pod is in use.
        """
        await await_free_ports(self.identity.pod_ip, needed_ports(self.identity), self._watch.limits.ports_s)
        admin = await start_admin(self._admin(), self.identity.pod_ip, Port.ADMIN)
        server = await self._leadership.leader.listen(self.identity.pod_ip) if self._leadership else None
        self._handle_signals()
        tasks = [asyncio.ensure_future(work) for work in self._works()]
        for task in tasks:
            task.add_done_callback(self._on_task_end)
        try:
            return await self._ended
        finally:
            await self._close(admin, server, tasks)

    # -- Verbs ----------------------------------------------------------------------------------------------------

    def drain(self, deadline_s: float) -> None:
        """`/drain` on the leader; on another stage the leader is asked to drain the group."""
        if self._leadership is not None:
            self._leadership.leader.apply(ev.DrainAsked(deadline_s))
        elif not self.member.ask_to_leave(deadline_s):
            log.info("nothing to drain: this stage has no leader")

    def undrain(self) -> None:
        """`/undrain`. A pod that was told to end ends: nothing takes that back."""
        if self._leaving is not None:
            raise Refused("this pod was told to end, so its drain can't be taken back")
        self._leads("undrain").leader.apply(ev.UndrainAsked())

    def reload(self, asked: ReloadRequest) -> None:
        """`/reload`."""
        leader = self._leads("reload").leader
        serving = leader.membership.standing.state == GroupState.SERVING
        if refusal := leader.membership.reloading.refusal(asked, serving=serving):
            raise Refused(refusal)
        leader.apply(ev.ReloadAsked(asked))

    async def profile(self, asked: ProfileRequest) -> ProfileReport:
        """`/profile`."""
        leader = self._leads("profile").leader
        group = leader.membership
        if leader.profiling.runs:
            raise Refused("a profile is under way: post it again when that has ended")
        if group.phase is not Phase.SERVING:
            raise Refused(f"the group does not serve ({group.standing.reason} {group.standing.message})")
        try:
            return await leader.profiling.run(asked, group.epoch, group.checkpoint.model_revision)
        except ProfileFailed as error:
            raise Refused(str(error)) from None

    def trace_host(self, stage: int) -> str:
        """`/profile/trace`."""
        if stage == self.identity.stage:
            return ""
        seats = self._leads("profile").leader.membership.seats
        if stage >= len(seats) or not seats[stage].data:
            raise Refused(f"this group has no stage {stage} now")
        return seats[stage].data[0].host

    def abort(self, request_id: str) -> None:
        """`/abort`."""
        self._leads("abort").coordinator.send(Abort(request_id))

    def follow(self, address: str, incarnation: int) -> None:
        """`/leader`: on stage 0 a higher incarnation means that this one is superseded."""
        if self._leadership is None:
            self.member.follow(address, incarnation)
        elif incarnation > self.identity.incarnation:
            self._leadership.leader.apply(ev.Replaced(incarnation))

    def metrics(self) -> bytes:
        """Prometheus text."""
        status, ended = None, {}
        if self._leadership is not None:
            status = self._leadership.leader.membership.status
            ended = dict(self._leadership.leader.membership.ended)
        restarts = {rank: self.member.pool.restarts(rank) for rank in range(self.identity.tensor)}
        return exposition(Readings(self.board.refresh(), status, restarts, ended))

    # -- the document ---------------------------------------------------------------------------------------------

    def _document(self) -> StateDocument:
        leading = self._leadership
        standing = self._standing()
        return build(
            self.identity,
            boot=self._boot.name,
            standing=standing,
            stages=leading.stages(self._own_stage()) if leading else self._kn_own_stages(),
            status=self._status(),
            checkpoint=self.member.stage.checkpoint,
            reload=leading.leader.membership.reloading.state if leading else ReloadState(),
            draining=standing.state == GroupState.DRAINING,
        )

    def _standing(self) -> Standing:
        return self._leadership.leader.membership.standing if self._leadership else self.member.standing

    def _status(self) -> Status | None:
        return self._leadership.leader.membership.status if self._leadership else None

    def _kn_own_stages(self) -> tuple[StageState, ...]:
        heard = round(self._watch.now() - self.member.leader_heard, 3)
        return StageState(0, self.member.leader_incarnation, "", heard, ()), self._own_stage()

    def _own_stage(self) -> StageState:
        """This stage, first hand."""
        ages = {rank: self.member.pool.beat(rank)[1] for rank in range(self.identity.tensor)}
        ranks = rank_states(self.member.beats(), ages)
        return StageState(self.identity.stage, self.identity.incarnation, self._boot.name, 0.0, ranks)

    def _admin(self) -> Admin:
        return Admin(self.board, self, self.identity.token, self.identity.state_dir)

    # -- life -----------------------------------------------------------------------------------------------------

    def _works(self) -> list[Awaitable[None]]:
        works: list[Awaitable[None]] = [self._tick(), self.member.pool.run()]
        if self._leadership is None:
            return [*works, self.member.dial()]
        return [*works, *self._leadership.works(self.member)]

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self._clock.tick(asyncio.get_running_loop().time())
            self.member.tick()
            if self._leadership is not None:
                self._leadership.tick()
            reap_orphans()
            self._refresh()

    def _refresh(self) -> None:
        self.board.refresh()

    def _leads(self, verb: str) -> Leadership:
        if self._leadership is None:
            host = self.member.leader_host
            raise Refused(f"this is stage {self.identity.stage}: post /{verb} to the leader at {host}")
        return self._leadership

    def _end(self, termination: Termination) -> None:
        if not self._ended.done():
            self._ended.set_result(termination)

    def _handle_signals(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._on_signal, number)

    def _on_signal(self, number: signal.Signals) -> None:
        if self._leaving is None:
            log.info(f"{number.name}: draining for at most {self.identity.drain_timeout_s:g} s")
            self._leaving = asyncio.ensure_future(self._leave(self.identity.drain_timeout_s))
        else:
            log.info(f"{number.name} again: handing over now")
            self._leaving.cancel()
            self._leaving = asyncio.ensure_future(self._leave(0.0))

    async def _leave(self, deadline_s: float) -> None:
        self.drain(deadline_s)
        try:
            async with asyncio.timeout(deadline_s + _HANDOVER_GRACE_S):
                await (self._leadership.drained() if self._leadership else self.member.left())
        except TimeoutError:
            log.warning("the drain did not end in time")
        self._end(Termination(Exit.DRAINED, Reason.DRAIN_REQUESTED, "drained and stopped as asked"))

    def _on_task_end(self, task: asyncio.Future[None]) -> None:
        failure = None if task.cancelled() else task.exception()
        if failure is not None and not self._ended.done():
            self._ended.set_exception(failure)

    async def _close(
        self, admin: web.AppRunner, server: asyncio.Server | None, tasks: Sequence[asyncio.Future[None]]
    ) -> None:
        if self._leadership is not None:
            await self._leadership.stop()
        await self.member.stop(Reason.SHUTTING_DOWN)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if server is not None:
            server.close()
        await admin.cleanup()
