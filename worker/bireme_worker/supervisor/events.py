"""What the leader's membership hears, and what it wants done: plain records, no clock, no sockets.

``connection`` numbers the conversations with stages; words of a connection that a newer one has replaced are ignored.
"""

from dataclasses import dataclass

from bireme.wire.control import ControlMessage, Hello
from bireme.wire.state import ReloadRequest
from bireme_worker.coordinator.messages import CoordinatorKinds


@dataclass(frozen=True)
class Joined:
    """A stage dialled in and said who it is."""

    connection: int
    hello: Hello


@dataclass(frozen=True)
class Said:
    """A stage sent a message."""

    connection: int
    message: ControlMessage


@dataclass(frozen=True)
class Left:
    """The connection of a stage ended."""

    connection: int
    message: str


@dataclass(frozen=True)
class CoordinatorUp:
    """The coordinator process runs."""


@dataclass(frozen=True)
class CoordinatorDown:
    """The coordinator process ended; with it every running plan."""

    message: str


@dataclass(frozen=True)
class CoordinatorSaid:
    """The coordinator sent a message."""

    message: CoordinatorKinds


@dataclass(frozen=True)
class FrontChanged:
    """The HTTP processes accept connections, or one of them does not (``message`` says which)."""

    up: bool
    message: str = ""


@dataclass(frozen=True)
class DrainAsked:
    """`/drain`, or SIGTERM on the leader."""

    deadline_s: float


@dataclass(frozen=True)
class UndrainAsked:
    """`/undrain`."""


@dataclass(frozen=True)
class ReloadAsked:
    """`/reload`; whoever asks has looked whether the leader would refuse."""

    request: ReloadRequest


@dataclass(frozen=True)
class Replaced:
    """The operator named a newer leader: this one must serve no more."""

    by: int


@dataclass(frozen=True)
class Quit:
    """The leader's process is about to exit."""


@dataclass(frozen=True)
class Tick:
    """Time has passed."""


Event = (
    Joined
    | Said
    | Left
    | CoordinatorUp
    | CoordinatorDown
    | CoordinatorSaid
    | FrontChanged
    | DrainAsked
    | UndrainAsked
    | ReloadAsked
    | Replaced
    | Quit
    | Tick
)


@dataclass(frozen=True)
class Send:
    """Send to the stage at the other end of ``connection``."""

    connection: int
    message: ControlMessage


@dataclass(frozen=True)
class Drop:
    """Close ``connection`` after what was sent."""

    connection: int
    message: str


@dataclass(frozen=True)
class ToCoordinator:
    """Send to the coordinator; nobody is there to hear it while the coordinator is down."""

    message: CoordinatorKinds


@dataclass(frozen=True)
class Record:
    """Write ``epoch`` to the state file before anything else happens."""

    epoch: int


@dataclass(frozen=True)
class GiveUp:
    """End this process: a wait is over its limit."""

    exit_code: int
    reason: str
    message: str


Effect = Send | Drop | ToCoordinator | Record | GiveUp
