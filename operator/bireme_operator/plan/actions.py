"""What a plan asks a backend to do. Every action may be applied twice without harm."""

from collections.abc import Mapping
from dataclasses import dataclass

from bireme.wire.state import ReloadRequest


@dataclass(frozen=True)
class CreatePod:
    """Make one stage pod. The backend adds what only it knows: addresses, token file, state directory.

    The name is derived from identity and incarnation, so that creating it twice fails the second time.
    """

    name: str
    group: int
    stage: int
    incarnation: int
    revision: str
    model_revision: str
    environment: Mapping[str, str]


@dataclass(frozen=True)
class DeletePod:
    """End one pod: SIGTERM, then SIGKILL after ``grace_s`` seconds, then forget it."""

    name: str
    grace_s: float
    why: str


@dataclass(frozen=True)
class DrainGroup:
    """`POST /drain` to the leader pod ``leader``: hand over what still runs after ``deadline_s`` seconds."""

    group: int
    leader: str
    deadline_s: float


@dataclass(frozen=True)
class TellLeader:
    """`POST /leader` to the member ``pod``: the leader of its group is another pod now."""

    pod: str
    address: str
    incarnation: int


@dataclass(frozen=True)
class ReloadGroup:
    """`POST /reload` to the leader pod ``leader``: serve another checkpoint in place."""

    group: int
    leader: str
    request: ReloadRequest


@dataclass(frozen=True)
class LiftGate:
    """Let a pod to the scheduler that may only take ``node``, whose host name label is ``hostname``."""

    pod: str
    group: int
    node: str
    hostname: str


Action = CreatePod | DeletePod | LiftGate | DrainGroup | TellLeader | ReloadGroup
