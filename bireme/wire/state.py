"""The state document of every stage's supervisor and the bodies of its admin verbs (JSON, port 8001).

``GET /state`` returns one document; ``GET /watch?interval=1`` streams them, one JSON line each, on every change and at
each interval; silence of three intervals means unknown. The leader's document speaks for the group.
"""

from typing import Final

import msgspec

from bireme.wire import WIRE_VERSION
from bireme.wire.errors import Garbled, WrongVersion
from bireme.wire.requests import Limits

UNDERSTOOD: Final = range(WIRE_VERSION - 1, WIRE_VERSION + 2)
"""Versions of a stage that can be watched and told what to do: an upgrade of the operator, or its way back, is one."""


class RankState(msgspec.Struct, frozen=True):
    """One rank as its supervisor sees it. ``pid`` 0: no process. ``loads`` counts its checkpoint reads."""

    rank: int
    alive: bool
    pid: int
    phase: str
    step: int
    step_age_s: float
    loads: int


class StageState(msgspec.Struct, frozen=True):
    """One stage as this supervisor last heard of it."""

    stage: int
    incarnation: int
    boot: str
    last_heard_s: float
    ranks: tuple[RankState, ...]


class ReloadState(msgspec.Struct, frozen=True):
    """A reload under way: Idle | Staging | Prepared | Committing | Failed.

    ``final``: these files can't be served, so the same wish is not worth posting again. ``wish`` is the request's.
    """

    phase: str = "Idle"
    model_revision: str = ""
    message: str = ""
    source: str = ""
    final: bool = False
    wish: int = 0


class StateDocument(msgspec.Struct, frozen=True):
    """What a stage knows (design, section 6.2). Ages in seconds; counts in requests, tokens, blocks.

    ``v`` is the wire version of the stage. A field that is added has a default, for stages that do not say it.
    """

    v: int
    seq: int
    group: str
    stage: int
    incarnation: int
    boot: str
    epoch: int
    state: str
    reason: str
    message: str
    retry_after_s: float
    revision: str
    model_revision: str
    generation: int
    reload: ReloadState
    running: int
    waiting: int
    queued_prefill_tokens: int
    kv_blocks_used: int
    kv_blocks: int
    block_size: int
    step: int
    step_age_s: float
    draining: bool
    limits: Limits
    stages: tuple[StageState, ...]
    source: str = ""

    @property
    def ready(self) -> bool:
        """Whether `/readyz` of this stage answers 200: a leader that serves, or a member of a serving group."""
        return self.state == "Serving"


class DrainRequest(msgspec.Struct, frozen=True):
    """`POST /drain`: refuse new work; hand over what still runs after ``deadline_s`` seconds."""

    deadline_s: float = 300.0


class UndrainRequest(msgspec.Struct, frozen=True):
    """`POST /undrain`: take work again, whoever asked for the drain; a pod that was told to end refuses."""


class ReloadRequest(msgspec.Struct, frozen=True):
    """`POST /reload`: serve the checkpoint at ``source`` under the name ``model_revision``, without a restart.

    ``mode`` finish: running requests end under the old weights, for at most ``deadline_s`` seconds, while new ones
    wait; restart: they are computed anew under the new weights at once. ``wish`` numbers the operator's wishes.
    """

    source: str
    model_revision: str
    mode: str = "finish"
    deadline_s: float = 60.0
    wish: int = 0


class AbortRequest(msgspec.Struct, frozen=True):
    """`POST /abort`: end one request."""

    request_id: str


class LeaderRequest(msgspec.Struct, frozen=True):
    """`POST /leader`: where the leader is now."""

    address: str
    incarnation: int


class AdoptRequest(msgspec.Struct, frozen=True):
    """`POST /adopt`: a spare becomes this stage, of the group with the identity ``group`` and the index ``index``.

    ``leader`` is the address of its leader, ``token`` the group's, hex; ``source`` and ``model_revision`` name the
    checkpoint that the group serves.
    """

    group: str
    index: int
    stage: int
    incarnation: int
    leader: str
    source: str
    model_revision: str
    token: str = ""


class _Version(msgspec.Struct, frozen=True):
    v: int


_document: msgspec.json.Decoder[StateDocument] = msgspec.json.Decoder(StateDocument)
_version: msgspec.json.Decoder[_Version] = msgspec.json.Decoder(_Version)


def read_state(line: bytes | str) -> StateDocument:
    """One state document.

    Raises:
        WrongVersion: it is of a release too far from this one, whatever else of it could be read.
        Garbled: the text is none.
    """
    try:
        document = _document.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        _check_version(_version_of(line))
        raise Garbled(f"no state document: {error}") from error
    _check_version(document.v)
    return document


def _version_of(line: bytes | str) -> int:
    try:
        return _version.decode(line).v
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return WIRE_VERSION


def _check_version(spoken: int) -> None:
    if spoken not in UNDERSTOOD:
        understood = f"{UNDERSTOOD.start} to {UNDERSTOOD.stop - 1}"
        raise WrongVersion(f"the stage speaks wire version {spoken}, this side understands {understood}")
