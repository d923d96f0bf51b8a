"""Between the leader's supervisor and its coordinator, over a socket pair.

The supervisor owns membership and says when an epoch begins and ends; the coordinator owns the plan stream and the
requests and says how far they are.
"""

import msgspec

from bireme.wire.frames import Codec
from bireme.wire.requests import Limits


class CoordinatorMessage(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Base of these messages."""


class Begin(CoordinatorMessage, frozen=True):
    """Supervisor → coordinator: accept the ranks of this epoch; block pool and prefix index start empty."""

    epoch: int
    kv_blocks: int
    model_revision: str
    generation: int
    source: str = ""


class Begun(CoordinatorMessage, frozen=True):
    """Coordinator → supervisor: every rank of the epoch is attached; plans may flow once ``Serve`` comes."""

    epoch: int


class Serve(CoordinatorMessage, frozen=True):
    """Supervisor → coordinator: all ranks have formed, or a reload is over one way or the other; take requests."""

    epoch: int


class Finish(CoordinatorMessage, frozen=True):
    """Supervisor → coordinator: the epoch is over. Hand over journalled streams, keep the others for the next epoch."""

    epoch: int
    reason: str
    message: str
    retry_after_s: float


class PlanLost(CoordinatorMessage, frozen=True):
    """Coordinator → supervisor: a rank's plan connection broke."""

    epoch: int
    stage: int
    rank: int


class Reload(CoordinatorMessage, frozen=True):
    """Supervisor → coordinator: all ranks are prepared for ``generation``; come to a point where nothing is in flight.

    ``finish``: what runs ends first, for at most ``deadline_s`` seconds, while new requests wait; else at once.
    """

    epoch: int
    generation: int
    source: str
    finish: bool
    deadline_s: float


class Quiet(CoordinatorMessage, frozen=True):
    """Coordinator → supervisor: nothing is in flight and nothing will be before ``Swap`` or ``Serve``."""

    epoch: int
    generation: int


class Unfit(CoordinatorMessage, frozen=True):
    """Coordinator → supervisor: the tokenizer or template of the new checkpoint can't be used."""

    generation: int
    message: str


class Swap(CoordinatorMessage, frozen=True):
    """Supervisor → coordinator: it is decided; send ``plan.Commit``. ``Serve`` follows when every rank has obeyed."""

    epoch: int
    generation: int
    source: str
    model_revision: str


class Drain(CoordinatorMessage, frozen=True):
    """Supervisor → coordinator: refuse new work; hand over what still runs after ``deadline_s`` seconds."""

    deadline_s: float


class Undrain(CoordinatorMessage, frozen=True):
    """Supervisor → coordinator: take work again."""


class Abort(CoordinatorMessage, frozen=True):
    """Supervisor → coordinator: end the request with this id."""

    request_id: str


class Status(CoordinatorMessage, frozen=True):
    """Coordinator → supervisor: at least every 0.25 s and on every change of ``draining`` or of running to or from 0.

    ``step_age_s``: seconds since the last result while work is pending, else 0. Counters grow over the process's life.
    ``clients``: HTTP processes that are connected. ``limits``: what admission allows.
    """

    epoch: int
    running: int
    waiting: int
    queued_prefill_tokens: int
    kv_blocks_used: int
    kv_blocks: int
    step: int
    step_age_s: float
    draining: bool
    prompt_tokens: int
    cached_tokens: int
    generation_tokens: int
    finished: dict[str, int]
    nonfinite: int = 0
    drafted: int = 0
    accepted: int = 0
    clients: int = 0
    limits: Limits | None = None


CoordinatorKinds = (
    Begin | Begun | Serve | Finish | PlanLost | Reload | Quiet | Unfit | Swap | Drain | Undrain | Abort | Status
)
coordinator_codec: Codec[CoordinatorKinds] = Codec(CoordinatorKinds)
