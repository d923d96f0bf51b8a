"""Who is in the group, and when an epoch begins and ends: the leader's pure state machine.

An epoch is formed when every stage is ready and the coordinator runs; it serves when every rank has formed it and is
attached to the coordinator; any loss ends it for all, and the next one waits until every stage has left it and is ready
again. Losses may come in any order and number, also while loading, forming or ending: each only takes back what one
seat had promised. Time is an argument; what must be done comes back as effects.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from bireme.names import Exit, Reason
from bireme.wire.control import (
    EPOCH_SHIFT,
    Address,
    Checkpoint,
    Committed,
    ControlMessage,
    End,
    Ended,
    Form,
    Formed,
    Leaving,
    Load,
    Loaded,
    Lost,
    Prepared,
    Standing,
    Superseded,
    Welcome,
)
from bireme_worker.coordinator.messages import (
    Begin,
    Begun,
    CoordinatorKinds,
    Drain,
    Finish,
    PlanLost,
    Quiet,
    Serve,
    Status,
    Undrain,
    Unfit,
)
from bireme_worker.supervisor import events as ev
from bireme_worker.supervisor.blame import Blame
from bireme_worker.supervisor.limits import Limits, backoff
from bireme_worker.supervisor.nonfinite import NonfiniteWatch
from bireme_worker.supervisor.reload import Reloading
from bireme_worker.supervisor.seat import Seat
from bireme_worker.supervisor.standing import Facts, judge


class Phase(Enum):
    """Where the group is between two epochs."""

    APART = "apart"
    FORMING = "forming"
    SERVING = "serving"
    ENDING = "ending"


@dataclass(frozen=True)
class Group:
    """What the leader knows of its group from the start."""

    uid: str
    stages: int
    tensor: int
    incarnation: int
    plan: Address
    checkpoint: Checkpoint
    http_processes: int = 0


class Membership:
    """The leader's view; feed ``handle`` with events in the order in which they happen."""

    def __init__(self, group: Group, limits: Limits, last_epoch: int, now: float) -> None:
        self.group = group
        self.seats = [Seat(stage, now) for stage in range(group.stages)]
        self.reloading = Reloading(group.checkpoint, self.seats, now)
        self.phase = Phase.APART
        self.epoch = 0
        self.last_epoch = last_epoch
        self.status: Status | None = None
        self.ended: Counter[str] = Counter()
        self._limits = limits
        self._nonfinite = NonfiniteWatch(limits, now)
        self._since = now
        self._begun = False
        self._coordinator = False
        self._front: ev.FrontChanged = ev.FrontChanged(up=False, message="the HTTP processes start")
        self._failures = 0
        self._not_before = now
        self._drain_by: float | None = None
        self._replaced_by = 0
        self._quitting = False
        self._blame = Blame()
        if last_epoch:
            self._come_back()
        self._out: list[ev.Effect] = []
        self._told = self.standing

    def handle(self, event: ev.Event, now: float) -> list[ev.Effect]:
        """Take one event in and return what must be done, in this order."""
        self._dispatch(event, now)
        self._advance(now)
        standing = self.standing
        if standing != self._told:
            self._told = standing
            self._out += [ev.Send(seat.connection, standing) for seat in self.seats if seat.present]
        out, self._out = self._out, []
        return out

    @property
    def checkpoint(self) -> Checkpoint:
        """What the group serves, or will when it has formed."""
        return self.reloading.checkpoint

    @property
    def draining(self) -> bool:
        """New work is refused because somebody asked for it."""
        return self._drain_by is not None or any(seat.leave_by is not None for seat in self.seats)

    @property
    def drained(self) -> bool:
        """Draining, and no request is left."""
        if not self.draining:
            return False
        if self.status is None or not self._coordinator:
            return self.phase is not Phase.SERVING
        return self.status.draining and self.status.running == 0 and self.status.waiting == 0

    @property
    def standing(self) -> Standing:
        """What the group is, in the words of ``names``."""
        return judge(
            Facts(
                epoch=self.epoch or self.last_epoch,
                formed=self.phase is Phase.SERVING,
                forming=self.phase is Phase.FORMING,
                loading=any(seat.present and not seat.loaded for seat in self.seats),
                draining=self.draining,
                front_up=self.front.up,
                front_message=self.front.message,
                cause=self._blame.cause,
                trouble=self._blame.trouble,
                waits=tuple(filter(None, (seat.waits_for() for seat in self.seats))),
                replaced_by=self._replaced_by,
            )
        )

    @property
    def front(self) -> ev.FrontChanged:
        """Whether every HTTP process accepts connections and has dialled the coordinator, or what is missing."""
        wanted, there = self.group.http_processes, self.status.clients if self.status is not None else 0
        if not self._front.up or there >= wanted:
            return self._front
        return ev.FrontChanged(up=False, message=f"{wanted - there} of {wanted} HTTP processes dial the coordinator")

    def seat_of(self, connection: int) -> Seat | None:
        """The seat that talks over ``connection`` now."""
        return next((seat for seat in self.seats if connection and seat.connection == connection), None)

    def _dispatch(self, event: ev.Event, now: float) -> None:
        match event:
            case ev.Joined():
                self._join(event, now)
            case ev.Said(connection, message):
                if seat := self.seat_of(connection):
                    self._hear(seat, message, now)
            case ev.Left(connection, text):
                if seat := self.seat_of(connection):
                    self._vacate(seat, text, now)
            case ev.CoordinatorSaid(message):
                self._hear_coordinator(message, now)
            case ev.CoordinatorUp():
                self._coordinator, self.status = True, None
                self._nonfinite.reset(now)
                self._drain_coordinator(now)
            case ev.CoordinatorDown(text):
                self._coordinator, self.status = False, None
                self._end(Reason.LEADER_LOST, text, now)
            case ev.FrontChanged():
                self._see_front(event, self.status)
            case ev.DrainAsked(deadline_s):
                self._drain_by = now + deadline_s
                self._drain_coordinator(now)
            case ev.UndrainAsked():
                self._drain_by = None
                self._undrain_coordinator()
            case ev.ReloadAsked(request):
                self._out += self.reloading.ask(request, self.epoch, now)
            case ev.Replaced(by):
                self._replaced_by = by
                self._end(Reason.SUPERSEDED, f"incarnation {by} leads this group now", now)
            case ev.Quit():
                self._quitting = True
                self._end(Reason.SHUTTING_DOWN, "the leader stops", now)
            case ev.Tick():
                self._check_limits(now)

    def _join(self, event: ev.Joined, now: float) -> None:
        hello = event.hello
        if refusal := self._refusal(event):
            self._out.append(ev.Drop(event.connection, refusal))
            return
        seat = self.seats[hello.stage]
        if hello.incarnation < seat.incarnation:
            self._out.append(ev.Send(event.connection, Superseded(seat.incarnation)))
            self._out.append(ev.Drop(event.connection, f"incarnation {seat.incarnation} of this stage exists"))
            return
        if seat.present:
            self._replace(seat, hello.incarnation, now)
        if hello.last_epoch > self.last_epoch:
            self.last_epoch = hello.last_epoch
            self._come_back()
        if hello.checkpoint is not None and hello.checkpoint.generation > self.checkpoint.generation:
            self._out += [*self.reloading.adopt(hello.checkpoint, now), ev.Record(self.last_epoch)]
        seat.take(event.connection, hello, now)
        welcome = Welcome(seat.stage, seat.incarnation, self.checkpoint)
        self._send(seat, welcome, Load(self.checkpoint), self.standing)

    def _refusal(self, event: ev.Joined) -> str:
        hello, group = event.hello, self.group
        if hello.group != group.uid:
            return f"a stage of group {hello.group!r} dialled group {group.uid!r}"
        if not 0 <= hello.stage < group.stages:
            return f"stage {hello.stage} does not exist: the group has {group.stages}"
        if hello.stage == 0 and self.seats[0].present:
            return "stage 0 is the leader itself; another one dialled in"
        if len(hello.data) != group.tensor:
            return f"stage {hello.stage} has {len(hello.data)} ranks, the group has {group.tensor} per stage"
        return ""

    def _replace(self, seat: Seat, incarnation: int, now: float) -> None:
        old = seat.connection
        if incarnation > seat.incarnation:
            self._out.append(ev.Send(old, Superseded(incarnation)))
        self._out.append(ev.Drop(old, f"stage {seat.stage} dialled in anew as incarnation {incarnation}"))
        self._vacate(seat, f"incarnation {incarnation} dialled in anew", now)

    def _vacate(self, seat: Seat, text: str, now: float) -> None:
        was_draining = self.draining
        seat.leave(now)
        self._end(Reason.STAGE_LOST, f"stage {seat.stage}: {text}", now)
        if was_draining:
            self._undrain_coordinator()

    def _hear(self, seat: Seat, message: ControlMessage, now: float) -> None:
        match message:
            case Loaded(checkpoint, kv_blocks) if checkpoint == self.checkpoint:
                seat.loaded, seat.kv_blocks, seat.since = True, kv_blocks, now
            case Formed(epoch) if epoch == seat.epoch:
                seat.formed = True
            case Ended(epoch) if epoch == seat.epoch:
                seat.epoch, seat.formed = 0, False
            case Lost(_, reason, text, collateral):
                seat.loaded, seat.since = False, now
                self._end(reason, f"stage {seat.stage}: {text}", now, collateral=collateral)
            case Prepared():
                self._out += self.reloading.prepared(seat, message, self.epoch, now)
            case Committed(generation):
                self._out += self.reloading.committed(seat, generation, self.epoch, now)
            case Leaving(deadline_s):
                seat.leave_by = now + deadline_s
                self._drain_coordinator(now)
            case _:
                pass

    def _hear_coordinator(self, message: CoordinatorKinds, now: float) -> None:
        match message:
            case Begun(epoch) if epoch == self.epoch:
                self._begun = True
            case PlanLost(epoch, stage, rank) if epoch == self.epoch:
                self._end(
                    Reason.RANK_LOST, f"stage {stage}: rank {rank} left the plan connection", now, collateral=True
                )
            case Quiet(epoch, generation) if epoch == self.epoch and self.phase is Phase.SERVING:
                self._out += self.reloading.quiet(generation, epoch, now)
            case Unfit(generation, text):
                self._out += self.reloading.unfit(generation, text, self.epoch, now)
            case Status():
                self._see_front(self._front, message)
                if text := self._nonfinite.hear(message, now):
                    self._end(Reason.NON_FINITE, text, now)
                    for seat in self.seats:
                        seat.loaded, seat.since = False, now
            case _:
                pass

    def _see_front(self, front: ev.FrontChanged, status: Status | None) -> None:
        was_up = self.front.up
        self._front, self.status = front, status
        if was_up and not self.front.up and self.phase is Phase.SERVING:
            self._blame.note(Reason.LEADER_LOST, self.front.message, serving=True)

    def _advance(self, now: float) -> None:
        if self.phase is Phase.ENDING and not any(seat.epoch for seat in self.seats):
            self._enter(Phase.APART, now)
            self.epoch = 0
        if self.phase is Phase.APART and self._may_form(now):
            self._form(now)
        if self.phase is Phase.FORMING and self._begun and all(seat.formed for seat in self.seats):
            self._enter(Phase.SERVING, now)
            self._out.append(ev.ToCoordinator(Serve(self.epoch)))
        if self.phase is Phase.SERVING and self.front.up:
            self._blame.clear()
        if self._leave_due(now):
            self._end(Reason.DRAIN_REQUESTED, "a stage was asked to stop", now)

    def _may_form(self, now: float) -> bool:
        blocked = not self._coordinator or self._replaced_by or self._quitting or now < self._not_before
        return not blocked and all(seat.ready for seat in self.seats)

    def _leave_due(self, now: float) -> bool:
        leaving = [seat.leave_by for seat in self.seats if seat.leave_by is not None]
        return bool(leaving) and (self.drained or now >= min(leaving) + self._limits.stable_s)

    def _form(self, now: float) -> None:
        self.epoch = self.last_epoch = max(self.group.incarnation << EPOCH_SHIFT, self.last_epoch) + 1
        self._begun = False
        kv_blocks = min(seat.kv_blocks for seat in self.seats)
        form = Form(self.epoch, tuple(seat.data for seat in self.seats), self.group.plan, kv_blocks)
        begin = Begin(self.epoch, kv_blocks, *self._weights)
        self._out += [ev.Record(self.epoch), ev.ToCoordinator(begin)]
        for seat in self.seats:
            seat.epoch, seat.formed = self.epoch, False
            self._send(seat, form)
        self._enter(Phase.FORMING, now)

    def _end(self, reason: str, text: str, now: float, *, collateral: bool = False) -> None:
        self._blame.note(reason, text, serving=self.phase is Phase.SERVING, collateral=collateral)
        if self.phase not in (Phase.FORMING, Phase.SERVING):
            return
        self._count_failure(now)
        self.ended[reason] += 1
        for seat in self.seats:
            if seat.present and seat.epoch:
                self._send(seat, End(self.epoch, reason))
        self._enter(Phase.ENDING, now)
        self._out += self.reloading.epoch_ended(text, now)
        self._out.append(ev.ToCoordinator(Finish(self.epoch, reason, text, self.standing.retry_after_s)))

    @property
    def _weights(self) -> tuple[str, int, str]:
        return self.checkpoint.model_revision, self.checkpoint.generation, self.checkpoint.source

    def _come_back(self) -> None:
        if self._blame.cause is None:
            self._blame.note(Reason.LEADER_LOST, "the leader was started again", serving=True)

    def _count_failure(self, now: float) -> None:
        stable = self.phase is Phase.SERVING and now - self._since >= self._limits.stable_s
        self._failures = 1 if stable else self._failures + 1
        self._not_before = now + backoff(self._failures)

    def _enter(self, phase: Phase, now: float) -> None:
        self.phase, self._since = phase, now

    def _send(self, seat: Seat, *messages: ControlMessage) -> None:
        self._out += [ev.Send(seat.connection, message) for message in messages]

    def _drain_coordinator(self, now: float) -> None:
        ends = [seat.leave_by for seat in self.seats] + [self._drain_by]
        known = [end for end in ends if end is not None]
        if known:
            self._out.append(ev.ToCoordinator(Drain(max(min(known) - now, 0.0))))

    def _undrain_coordinator(self) -> None:
        if not self.draining:
            self._out.append(ev.ToCoordinator(Undrain()))

    def _check_limits(self, now: float) -> None:
        limits = self._limits
        if self.phase is Phase.FORMING and now - self._since > limits.forming_s:
            waits = ", ".join(filter(None, (seat.waits_for() for seat in self.seats))) or "the coordinator to begin"
            self._end(Reason.HUNG, f"epoch {self.epoch} did not form within {limits.forming_s:g} s: {waits}", now)
        if overdue := self.reloading.overdue(limits, now):
            self._end(Reason.HUNG, overdue, now)
        if self.phase is Phase.ENDING and now - self._since > 4 * limits.ending_s:
            self._drop_where(lambda seat: seat.epoch != 0, "it did not leave the epoch in time", now)
        longest = limits.loading_s + limits.forming_s
        self._drop_where(lambda seat: not seat.loaded and now - seat.since > longest, "it did not load in time", now)
        absent = [seat for seat in self.seats if not seat.present and now - seat.since > limits.rejoin_s]
        if absent and not self._replaced_by:
            text = f"stage {absent[0].stage} stayed away for more than {limits.rejoin_s:g} s"
            self._out.append(ev.GiveUp(Exit.PEER_LOST, Reason.STAGE_LOST, text))

    def _drop_where(self, wanted: Callable[[Seat], bool], text: str, now: float) -> None:
        for seat in self.seats:
            if seat.present and wanted(seat):
                self._out.append(ev.Drop(seat.connection, f"stage {seat.stage}: {text}"))
                self._vacate(seat, text, now)
