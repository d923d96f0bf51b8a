"""The leader's side of a hot reload: stage, prepare, come to rest, decide, commit. A pure state machine.

Before the decision the old weights serve whatever happens, and any failure or loss gives the reload up. The decision is
one write to the leader's file; from there it only goes forward: whoever is lost afterwards comes back on the new
weights. No token is drawn from them before every stage has written the decision down too.
"""

from collections.abc import Sequence
from enum import StrEnum

from bireme.wire.control import Checkpoint, Discard, Load, Prepared, Stage
from bireme.wire.state import ReloadRequest, ReloadState
from bireme_worker.coordinator.messages import Reload, Serve, Swap
from bireme_worker.supervisor import events as ev
from bireme_worker.supervisor.limits import Limits
from bireme_worker.supervisor.seat import Seat

FINISH, RESTART = "finish", "restart"
MODES = (FINISH, RESTART)


class Phase(StrEnum):
    """The words of ``ReloadState.phase``."""

    IDLE = "Idle"
    STAGING = "Staging"
    PREPARED = "Prepared"
    COMMITTING = "Committing"
    FAILED = "Failed"


UNDECIDED = (Phase.STAGING, Phase.PREPARED)


class Reloading:
    """One reload at a time. ``checkpoint`` is what the group serves, or will when it forms again.

    Methods return what must be done, in this order. ``since``: when the present phase began.
    """

    def __init__(self, checkpoint: Checkpoint, seats: Sequence[Seat], now: float) -> None:
        self.checkpoint = checkpoint
        self.phase = Phase.IDLE
        self.since = now
        self._seats = seats
        self._wanted = checkpoint
        self._asked = ReloadRequest(checkpoint.source, checkpoint.model_revision)
        self._message = ""
        self._final = False

    @property
    def state(self) -> ReloadState:
        """What the state document says of it."""
        if self.phase is Phase.IDLE:
            return ReloadState(wish=self._asked.wish)
        asked = self._asked
        return ReloadState(self.phase, asked.model_revision, self._message, asked.source, self._final, asked.wish)

    def refusal(self, asked: ReloadRequest, *, serving: bool) -> str:
        """Why this can't be asked for now, or nothing."""
        served, wanted = self.checkpoint, self._wanted
        if _weights(served) == (asked.source, asked.model_revision):
            return "" if self.phase is not Phase.COMMITTING else "the commit is under way: post it again"
        if served.model_revision == asked.model_revision:
            return f"model revision {served.model_revision!r} names {served.source}: give other weights another name"
        if self.phase in (*UNDECIDED, Phase.COMMITTING):
            if _weights(wanted) == (asked.source, asked.model_revision):
                return ""
            return f"a reload to {wanted.model_revision!r} is under way ({self.phase}): wait for its end"
        return "" if serving else "the group does not serve: post it again when it does"

    def ask(self, asked: ReloadRequest, epoch: int, now: float) -> list[ev.Effect]:
        """Begin; to ask for what is served gives a reload up, to ask for what is under way does nothing."""
        if _weights(self.checkpoint) == (asked.source, asked.model_revision):
            effects = self._give_up(epoch)
            self._asked = asked
            self._enter(Phase.IDLE, now)
            return effects
        if self.phase not in (Phase.IDLE, Phase.FAILED):
            return []
        # A number is never used twice, so that no late word of a reload given up can be taken for one of this.
        generation = max(self._wanted.generation, self.checkpoint.generation) + 1
        self._wanted = Checkpoint(asked.source, asked.model_revision, generation)
        self._asked = asked
        self._enter(Phase.STAGING, now)
        for seat in self._seats:
            seat.prepared = False
        return [ev.Send(seat.connection, Stage(self._wanted)) for seat in self._seats]

    def prepared(self, seat: Seat, said: Prepared, epoch: int, now: float) -> list[ev.Effect]:
        """A stage has verified the new weights, or says what is wrong with them."""
        if self.phase is not Phase.STAGING or said.generation != self._wanted.generation:
            return []
        if said.error:
            return self._fail(f"stage {seat.stage}: {said.error}", epoch, now, final=True)
        seat.prepared = True
        if not all(seat.prepared for seat in self._seats):
            return []
        self._enter(Phase.PREPARED, now)
        wanted, asked = self._wanted, self._asked
        finish = asked.mode == FINISH
        return [ev.ToCoordinator(Reload(epoch, wanted.generation, wanted.source, finish, asked.deadline_s))]

    def unfit(self, generation: int, message: str, epoch: int, now: float) -> list[ev.Effect]:
        """The coordinator can't use the new checkpoint's text side."""
        if self.phase not in UNDECIDED or generation != self._wanted.generation:
            return []
        return self._fail(message, epoch, now, final=True)

    def quiet(self, generation: int, epoch: int, now: float) -> list[ev.Effect]:
        """Nothing is in flight: decide. From here on only forward."""
        if self.phase is not Phase.PREPARED or generation != self._wanted.generation:
            return []
        decided = self.checkpoint = self._wanted
        self._enter(Phase.COMMITTING, now)
        for seat in self._seats:
            seat.loaded, seat.since = False, now
        swap = Swap(epoch, decided.generation, decided.source, decided.model_revision)
        return [ev.Record(epoch), ev.ToCoordinator(swap)]

    def committed(self, seat: Seat, generation: int, epoch: int, now: float) -> list[ev.Effect]:
        """A stage computes with the new weights and has written so down."""
        if self.phase is not Phase.COMMITTING or generation != self.checkpoint.generation:
            return []
        seat.loaded, seat.since = True, now
        if not all(seat.loaded for seat in self._seats):
            return []
        self._enter(Phase.IDLE, now)
        return [ev.ToCoordinator(Serve(epoch))]

    def epoch_ended(self, text: str, now: float) -> list[ev.Effect]:
        """Something was lost: give up before the decision, load the new weights everywhere after it."""
        if self.phase in UNDECIDED:
            return self._fail(f"given up, the old weights go on: {text}", 0, now, final=False)
        if self.phase is not Phase.COMMITTING:
            return []
        self._enter(Phase.IDLE, now)
        return self._load_where(loaded=False)

    def overdue(self, limits: Limits, now: float) -> str:
        """Why the epoch has to end because of a commit that takes too long, or nothing."""
        if self.phase is not Phase.COMMITTING or now - self.since <= limits.ending_s:
            return ""
        late = ", ".join(str(seat.stage) for seat in self._seats if not seat.loaded)
        return f"stage {late} did not commit generation {self.checkpoint.generation} within {limits.ending_s:g} s"

    def adopt(self, known: Checkpoint, now: float) -> list[ev.Effect]:
        """A stage knows of a later commit than this leader, which lost its file: forward, everywhere."""
        self.checkpoint = known
        for seat in self._seats:
            seat.loaded = False
        effects = self._give_up(0)
        self._enter(Phase.IDLE, now)
        return [*effects, *self._load_where(loaded=False)]

    def _load_where(self, *, loaded: bool) -> list[ev.Effect]:
        waiting = [seat for seat in self._seats if seat.present and seat.loaded is loaded]
        return [ev.Send(seat.connection, Load(self.checkpoint)) for seat in waiting]

    def _fail(self, text: str, epoch: int, now: float, *, final: bool) -> list[ev.Effect]:
        effects = self._give_up(epoch)
        self._enter(Phase.FAILED, now)
        self._message, self._final = text, final
        return effects

    def _give_up(self, epoch: int) -> list[ev.Effect]:
        if self.phase not in UNDECIDED:
            return []
        generation = self._wanted.generation
        effects: list[ev.Effect] = [
            ev.Send(seat.connection, Discard(generation)) for seat in self._seats if seat.present
        ]
        if self.phase is Phase.PREPARED and epoch:
            effects.append(ev.ToCoordinator(Serve(epoch)))
        return effects

    def _enter(self, phase: Phase, now: float) -> None:
        self.phase, self.since = phase, now
        self._message, self._final = "", False


def _weights(checkpoint: Checkpoint) -> tuple[str, str]:
    return checkpoint.source, checkpoint.model_revision
