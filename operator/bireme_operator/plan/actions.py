"""What a plan asks a backend to do. Every action may be applied twice without harm."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from bireme.wire.state import AdoptRequest, ReloadRequest


@dataclass(frozen=True)
class CreatePod:
    """Make one stage pod. The backend adds what only it knows: addresses, token file, state directory.

    The name is derived from identity and incarnation, so that creating it twice fails the second time. ``image`` is for
    a worker whose template names none.
    """

    name: str
    group: int
    stage: int
    incarnation: int
    revision: str
    model_revision: str
    environment: Mapping[str, str]
    image: str = ""


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
class UndrainGroup:
    """`POST /undrain` to the leader pod ``leader``: its drain is not wanted any more."""

    group: int
    leader: str


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


@dataclass(frozen=True)
class CreateSpare:
    """Make a pod that stands by, the spare ``number``."""

    name: str
    number: int
    revision: str
    model_revision: str
    environment: Mapping[str, str]
    image: str = ""


@dataclass(frozen=True)
class EndSpare:
    """End a pod that stands by."""

    name: str
    why: str


@dataclass(frozen=True)
class AdoptSpare:
    """Let the pod ``name``, which stands by, be a stage from now on: it counts and is routed to as one.

    ``deaths`` is how often its process had ended before: that is not the group's.
    """

    name: str
    group: int
    stage: int
    incarnation: int
    model_revision: str
    deaths: int = 0


@dataclass(frozen=True)
class Become:
    """`POST /adopt` to the pod ``pod``, which stood by and is a stage now. ``leader`` is its leader's incarnation."""

    pod: str
    leader: int
    request: AdoptRequest


Action = (
    CreatePod
    | DeletePod
    | LiftGate
    | DrainGroup
    | UndrainGroup
    | TellLeader
    | ReloadGroup
    | CreateSpare
    | EndSpare
    | AdoptSpare
    | Become
)
BINDING: Final = (CreatePod, DeletePod, DrainGroup, UndrainGroup, CreateSpare, AdoptSpare)
"""What may only be done when the memory that goes with it is kept; the others follow from what is seen."""


def made_by_group(actions: Iterable[Action]) -> dict[int, list[CreatePod | AdoptSpare]]:
    """Return the stages that get a pod, by group."""
    made: dict[int, list[CreatePod | AdoptSpare]] = {}
    for action in actions:
        if isinstance(action, CreatePod | AdoptSpare):
            made.setdefault(action.group, []).append(action)
    return made
