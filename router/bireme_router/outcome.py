"""How one attempt ended."""

from collections.abc import Mapping
from dataclasses import dataclass

from bireme_router.policies.avoidance import Setback


@dataclass(frozen=True)
class Finished:
    """The answer is complete and with the client."""


@dataclass(frozen=True)
class Failed:
    """The engine said in the stream that it can't; ``payload`` is its error object, not yet sent to the client."""

    payload: bytes


@dataclass(frozen=True)
class Refused:
    """An answer that is not 200."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    unprocessed: bool
    retry_after_s: float


@dataclass(frozen=True)
class Lost:
    """No (more) answer came, and why. ``setback`` UNREACHED proves that nothing was processed."""

    setback: Setback
    reason: str


Outcome = Finished | Failed | Refused | Lost
