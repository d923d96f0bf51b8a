"""The control channel: supervisors with their leader, and each supervisor with its own ranks.

A stage dials the leader and says Hello; the leader answers Welcome or Superseded. Then: Load → Loaded, Form → Formed,
Beat both ways, End → Ended, Standing on every change of the group's state; for a reload Stage → Prepared, Commit →
Committed, and Discard where it came to nothing; for a profile Profile → Profiled. Every message that belongs to an
epoch carries it, and a mismatch is dropped.
Epoch = max(incarnation << 20, the last epoch in any Hello and in the file) + 1.
"""

from typing import Final

import msgspec

from bireme.wire.frames import Codec
from bireme.wire.profile import RankProfile

EPOCH_SHIFT: Final = 20
"""A leader of a higher incarnation always opens a higher epoch, even if it lost its file."""


class Message(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Base of the control messages; the class name is the tag."""


class Checkpoint(msgspec.Struct, frozen=True):
    """Which weights: where they are, what they are called, how many reloads led to them."""

    source: str
    model_revision: str
    generation: int = 0


class Address(msgspec.Struct, frozen=True, array_like=True):
    """A TCP address."""

    host: str
    port: int


class Hello(Message, frozen=True):
    """Stage → leader, first message: who I am, what I hold. ``data`` is the data address of each rank, by rank.

    ``checkpoint``: what the stage last heard to be committed, from its file, loaded or not; a higher generation wins.
    """

    group: str
    stage: int
    incarnation: int
    boot: str
    last_epoch: int
    data: tuple[Address, ...]
    loaded: Checkpoint | None = None
    checkpoint: Checkpoint | None = None


class Welcome(Message, frozen=True):
    """Leader → stage: you are in, this is the checkpoint that the group serves."""

    stage: int
    incarnation: int
    checkpoint: Checkpoint


class Superseded(Message, frozen=True):
    """Leader → stage: incarnation ``by`` of your stage exists; close your ports and wait to be deleted."""

    by: int


class Become(Message, frozen=True):
    """Supervisor → spare rank process, first message: you are rank ``rank`` of this stage."""

    rank: int


class Load(Message, frozen=True):
    """Load these weights (no-op when they are loaded)."""

    checkpoint: Checkpoint


class Loaded(Message, frozen=True):
    """The weights are in place. ``kv_blocks``: blocks this rank (stage: its smallest rank) can hold."""

    checkpoint: Checkpoint
    kv_blocks: int
    rank: int = 0


class Form(Message, frozen=True):
    """Form this epoch. ``data[stage][rank]`` are the data addresses, ``plan`` is the coordinator's."""

    epoch: int
    data: tuple[tuple[Address, ...], ...]
    plan: Address
    kv_blocks: int


class Formed(Message, frozen=True):
    """All connections of the epoch stand and the warm-up collective came through."""

    epoch: int
    rank: int = 0


class RankBeat(msgspec.Struct, frozen=True, omit_defaults=True):
    """Progress of one rank, from a thread outside the device stream. ``layers`` grows with every layer computed.

    ``pid`` and ``loads`` (checkpoint reads since the supervisor started) are filled in by the rank's supervisor.
    """

    rank: int
    alive: bool
    phase: str = "Idle"
    epoch: int = 0
    step: int = 0
    layers: int = 0
    busy: bool = False
    pid: int = 0
    loads: int = 0


class Beat(Message, frozen=True):
    """Every ``BEAT_INTERVAL_S`` in both directions; the leader's has no ranks."""

    ranks: tuple[RankBeat, ...] = ()


class End(Message, frozen=True):
    """End the epoch: abort its connections, drop its plans, keep weights and KV allocation."""

    epoch: int
    reason: str


class Ended(Message, frozen=True):
    """The epoch is over here and the device is idle."""

    epoch: int
    rank: int = 0


class Lost(Message, frozen=True):
    """Stage → leader, rank → supervisor: a rank ended or the epoch broke here.

    ``collateral``: nothing of this stage was lost, a connection to a peer broke; the cause is elsewhere.
    """

    epoch: int
    reason: str
    message: str
    collateral: bool = False


class Leaving(Message, frozen=True):
    """Stage → leader: I was asked to stop; drain the group within ``deadline_s`` seconds, then end the epoch."""

    deadline_s: float


class Standing(Message, frozen=True):
    """Leader → stage, on every change: what the leader's state document says of the group; words of ``names``."""

    epoch: int
    state: str
    reason: str
    message: str
    retry_after_s: float = 0.0


class Failed(Message, frozen=True):
    """A rank can't go on. ``exit_code`` is the pod's, if this is final (64, 65); 0 means that the epoch broke only."""

    reason: str
    message: str
    exit_code: int = 0
    rank: int = 0
    epoch: int = 0


class Stage(Message, frozen=True):
    """Reload, step 1: read and verify these weights beside the served ones."""

    checkpoint: Checkpoint


class Prepared(Message, frozen=True):
    """Reload, step 2: the new weights are verified and in final layout, or ``error`` says why not."""

    generation: int
    rank: int = 0
    error: str = ""


class Committed(Message, frozen=True):
    """Reload, step 4: this rank serves the new weights (step 3 is ``plan.Commit`` in the plan stream)."""

    generation: int
    rank: int = 0


class Discard(Message, frozen=True):
    """Reload, given up before the commit: drop what was staged as this generation."""

    generation: int


class Profile(Message, frozen=True):
    """Leader → stage → each rank: a profile's next phase. Prepare: be ready to record; Record; Stop: it is given up.

    A rank prepares by recording one step for nothing, which tells how large a step's trace is. ``steps`` 0: no bound.
    """

    id: str
    epoch: int
    phase: str
    steps: int = 0
    seconds: float = 0.0


class Profiled(Message, frozen=True):
    """Rank → stage → leader: prepared, or with ``report`` done, or ``error`` says why not."""

    id: str
    rank: int
    error: str = ""
    report: RankProfile | None = None


class Stop(Message, frozen=True):
    """Leave: finish nothing, close everything, exit 0."""

    reason: str


ControlMessage = (
    Hello
    | Welcome
    | Superseded
    | Become
    | Load
    | Loaded
    | Form
    | Formed
    | Beat
    | End
    | Ended
    | Lost
    | Leaving
    | Standing
    | Failed
    | Stage
    | Prepared
    | Committed
    | Discard
    | Profile
    | Profiled
    | Stop
)

BEAT_INTERVAL_S: Final = 0.25
CONTROL_LIMIT: Final = 1024 * 1024
"""Bytes of a control frame; a group of 64 stages × 8 ranks needs 40 KB."""

control_codec: Codec[ControlMessage] = Codec(ControlMessage, CONTROL_LIMIT)
