"""One stage between its leader and its ranks: a pure state machine, the same on every stage.

The ranks' words are gathered into the stage's (Loaded when all have loaded, Ended when all have left the epoch); any
loss here is told at once and ends the epoch for the other ranks of the stage too. A loss of the leader does the same.
A Form waits until all ranks are idle, so no rank is ever in two epochs.
"""

from dataclasses import dataclass
from enum import StrEnum

from bireme.names import Exit, Reason
from bireme.wire.control import (
    Checkpoint,
    Committed,
    ControlMessage,
    Discard,
    End,
    Ended,
    Failed,
    Form,
    Formed,
    Load,
    Loaded,
    Lost,
    Prepared,
)
from bireme.wire.control import Stage as StageCheckpoint


class RankPhase(StrEnum):
    """Where a rank is; the words of ``StateDocument.stages[].ranks[].phase``."""

    DOWN = "Down"
    LOADING = "Loading"
    IDLE = "Idle"
    FORMING = "Forming"
    SERVING = "Serving"
    ENDING = "Ending"


IN_EPOCH = (RankPhase.FORMING, RankPhase.SERVING)
FINAL_EXITS = (Exit.BAD_CONFIGURATION, Exit.BAD_CHECKPOINT)


@dataclass
class RankSeat:
    """One rank. ``loads`` counts checkpoint reads over all its processes; ``silent``: no Beat for too long."""

    rank: int
    phase: RankPhase = RankPhase.DOWN
    epoch: int = 0
    checkpoint: Checkpoint | None = None
    kv_blocks: int = 0
    loads: int = 0
    silent: bool = False


@dataclass(frozen=True)
class ToRank:
    """Send to a rank of this stage."""

    rank: int
    message: ControlMessage


@dataclass(frozen=True)
class ToLeader:
    """Send to the leader, if it is connected."""

    message: ControlMessage


@dataclass(frozen=True)
class Kill:
    """SIGKILL this rank; its exit is then reported with this reason."""

    rank: int
    reason: str
    message: str


@dataclass(frozen=True)
class Fatal:
    """End the pod with ``exit_code``: starting again in place can't help."""

    exit_code: int
    reason: str
    message: str


Action = ToRank | ToLeader | Kill | Fatal


class Stage:
    """The stage's view; every method takes one happening in and returns what must be done, in order."""

    def __init__(self, tensor: int, checkpoint: Checkpoint, last_epoch: int) -> None:
        self.ranks = [RankSeat(rank) for rank in range(tensor)]
        self.checkpoint = checkpoint
        self.last_epoch = last_epoch
        self.connected = False
        self.cause: tuple[str, str] = (Reason.NONE, "")
        self._asked = False
        self._told_loaded = False
        self._form: Form | None = None
        self._formed_epoch = 0
        self._owes_ended = 0
        self._staging: Checkpoint | None = None
        self._prepared: set[int] = set()
        self._out: list[Action] = []

    @property
    def epoch(self) -> int:
        """The epoch that a rank of this stage is in, or 0."""
        return max((seat.epoch for seat in self.ranks), default=0)

    @property
    def loaded(self) -> bool:
        """Every rank holds the wanted weights."""
        return all(seat.checkpoint == self.checkpoint for seat in self.ranks)

    @property
    def healthy(self) -> bool:
        """Every rank lives and was heard."""
        return all(seat.phase is not RankPhase.DOWN and not seat.silent for seat in self.ranks)

    @property
    def serving(self) -> int:
        """The epoch that all ranks have formed, or 0."""
        formed = self.healthy and all(seat.phase is RankPhase.SERVING for seat in self.ranks)
        return self.epoch if formed else 0

    def rank_up(self, rank: int) -> list[Action]:
        """A process for this rank was started."""
        self.ranks[rank] = RankSeat(rank, loads=self.ranks[rank].loads)
        self._load(self.ranks[rank])
        return self._done()

    def rank_down(self, rank: int, reason: str, text: str) -> list[Action]:
        """The rank's process ended."""
        broken = self.epoch
        self.ranks[rank] = RankSeat(rank, loads=self.ranks[rank].loads)
        self._lose(broken, reason, text)
        return self._done()

    def rank_silent(self, rank: int, text: str) -> list[Action]:
        """No Beat from this rank for too long; it may come back."""
        if not self.ranks[rank].silent:
            self.ranks[rank].silent = True
            self._lose(self.epoch, Reason.HUNG, text)
        return self._done()

    def rank_heard(self, rank: int) -> list[Action]:
        """A Beat came."""
        self.ranks[rank].silent = False
        return self._done()

    def rank_stuck(self, rank: int, text: str) -> list[Action]:
        """The rank has work and makes no progress: end the epoch, which frees it if it waits for others only."""
        if self.ranks[rank].phase in IN_EPOCH:
            self._lose(self.epoch, Reason.HUNG, text)
        return self._done()

    def rank_said(self, rank: int, message: ControlMessage) -> list[Action]:
        """The rank sent a message (Beats are not for here)."""
        seat = self.ranks[rank]
        match message:
            case Loaded(checkpoint, kv_blocks) if seat.phase is RankPhase.LOADING:
                seat.phase, seat.checkpoint, seat.kv_blocks = RankPhase.IDLE, checkpoint, kv_blocks
                seat.loads += 1
            case Formed(epoch) if epoch == seat.epoch and seat.phase is RankPhase.FORMING:
                seat.phase = RankPhase.SERVING
            case Ended(epoch) if epoch == seat.epoch and seat.phase is RankPhase.ENDING:
                seat.phase, seat.epoch = RankPhase.IDLE, 0
            case Lost(epoch, reason, text) if epoch == seat.epoch and seat.phase in IN_EPOCH:
                self._lose(epoch, reason, f"rank {rank}: {text}", collateral=True)
            case Prepared():
                self._prepare(message)
            case Committed(generation):
                self._commit(seat, generation)
            case Failed():
                self._fail(seat, message)
            case _:
                pass
        return self._done()

    def connect(self) -> list[Action]:
        """A conversation with the leader began; it asks for Loaded by a Load."""
        self.connected, self._asked, self._told_loaded, self._owes_ended = True, False, False, 0
        return self._done()

    def disconnect(self) -> list[Action]:
        """The conversation with the leader ended."""
        self.connected, self._asked, self._form, self._owes_ended = False, False, None, 0
        self._discard()
        self._leave(Reason.LEADER_LOST)
        return self._done()

    def leader_said(self, message: ControlMessage) -> list[Action]:
        """The leader sent a message."""
        match message:
            case Load(checkpoint):
                self.checkpoint, self._asked, self._told_loaded = checkpoint, True, False
            case Form(epoch) if epoch > self.last_epoch:
                self._form, self.last_epoch = message, epoch
            case StageCheckpoint(staged):
                self._staging, self._prepared = staged, set()
                self._out += [ToRank(seat.rank, message) for seat in self.ranks]
            case Discard(generation) if self._staging is not None and self._staging.generation == generation:
                self._discard()
            case End(epoch, reason):
                self._form = None
                self._leave(reason)
                self._owes_ended = epoch
                if reason == Reason.NON_FINITE:
                    self._distrust(reason)
            case _:
                pass
        return self._done()

    def _prepare(self, said: Prepared) -> None:
        if self._staging is None or said.generation != self._staging.generation:
            return
        self._prepared.add(said.rank)
        if said.error or len(self._prepared) == len(self.ranks):
            error = f"rank {said.rank}: {said.error}" if said.error else ""
            self._out.append(ToLeader(Prepared(said.generation, error=error)))

    def _commit(self, seat: RankSeat, generation: int) -> None:
        if self._staging is None or generation != self._staging.generation:
            return
        seat.checkpoint = self._staging
        if all(other.checkpoint == self._staging for other in self.ranks):
            self.checkpoint, self._staging = self._staging, None
            self._out.append(ToLeader(Committed(generation)))

    def _discard(self) -> None:
        if self._staging is not None:
            self._out += [ToRank(seat.rank, Discard(self._staging.generation)) for seat in self.ranks]
            self._staging = None

    def _fail(self, seat: RankSeat, message: Failed) -> None:
        text = f"rank {seat.rank}: {message.message}"
        if message.exit_code in FINAL_EXITS:
            self._out.append(Fatal(message.exit_code, message.reason, text))
        elif message.exit_code or seat.phase is RankPhase.LOADING:
            self._out.append(Kill(seat.rank, message.reason, message.message))
        elif message.epoch == seat.epoch and seat.phase in IN_EPOCH:
            self._lose(seat.epoch, message.reason, text)

    def _lose(self, epoch: int, reason: str, text: str, *, collateral: bool = False) -> None:
        self._told_loaded = False
        self.cause = (reason, text)
        self._out.append(ToLeader(Lost(epoch or self.last_epoch, reason, text, collateral)))
        self._leave(reason)

    def _leave(self, reason: str) -> None:
        for seat in self.ranks:
            if seat.phase in IN_EPOCH:
                self._out.append(ToRank(seat.rank, End(seat.epoch, reason)))
                seat.phase = RankPhase.ENDING

    def _distrust(self, reason: str) -> None:
        """Weights in memory may be broken, and so may whatever broke them: new processes read them anew."""
        living = [seat for seat in self.ranks if seat.phase is not RankPhase.DOWN]
        self._out += [Kill(seat.rank, reason, "its weights are not trusted any more") for seat in living]

    def _load(self, seat: RankSeat) -> None:
        seat.phase = RankPhase.LOADING
        self._out.append(ToRank(seat.rank, Load(self.checkpoint)))

    def _done(self) -> list[Action]:
        for seat in self.ranks:
            if seat.phase is RankPhase.IDLE and seat.checkpoint != self.checkpoint:
                self._load(seat)
        if self.connected:
            self._report()
        out, self._out = self._out, []
        return [action for action in out if self.connected or not isinstance(action, ToLeader)]

    def _report(self) -> None:
        if self._owes_ended and not any(seat.phase in (*IN_EPOCH, RankPhase.ENDING) for seat in self.ranks):
            self._out.append(ToLeader(Ended(self._owes_ended)))
            self._owes_ended = 0
        ready = self.healthy and all(seat.phase is RankPhase.IDLE for seat in self.ranks)
        if ready and self._asked and not self._told_loaded:
            self._told_loaded = True
            self._out.append(ToLeader(Loaded(self.checkpoint, min(seat.kv_blocks for seat in self.ranks))))
        if ready and self._form is not None:
            self._start(self._form)
        if self.serving and self.serving != self._formed_epoch:
            self._formed_epoch = self.serving
            self._out.append(ToLeader(Formed(self.serving)))

    def _start(self, form: Form) -> None:
        self._form = None
        for seat in self.ranks:
            seat.phase, seat.epoch = RankPhase.FORMING, form.epoch
            self._out.append(ToRank(seat.rank, form))
