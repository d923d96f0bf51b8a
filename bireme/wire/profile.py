"""What a profile is asked for and what it says: the bodies of `POST /profile` (design, section 6.2).

A rank's window begins with the first step that it recorded and ends with the last moment of its recording. Every
moment of it is of exactly one ``Use``, so that the shares of a rank add up to its window.
"""

from enum import StrEnum
from typing import Final

import msgspec

from bireme.wire.errors import Garbled

PROFILE_VERSION: Final = 1
MOST_SECONDS: Final = 30.0
MOST_STEPS: Final = 1000
STRIP_BINS: Final = 480
"""Parts of a strip: what a picture of a screen's width can show."""


class Use(StrEnum):
    """What a rank's time went to. On a CPU rank the device is the thread that computes."""

    COMPUTE = "compute"
    SAMPLING = "sampling"
    EXCHANGE = "exchange"
    WAITS_STAGE = "waits_stage"
    WAITS_PLAN = "waits_plan"
    GAP = "gap"


LETTERS: Final = {
    Use.COMPUTE: "c",
    Use.SAMPLING: "s",
    Use.EXCHANGE: "x",
    Use.WAITS_STAGE: "w",
    Use.WAITS_PLAN: "p",
    Use.GAP: "g",
}
"""How a strip names them."""


class ProfileRequest(msgspec.Struct, frozen=True):
    """`POST /profile`: record ``steps`` steps on every rank, or what happens in ``seconds`` (0 steps: no such bound).

    Whichever comes first ends it.
    """

    steps: int = 0
    seconds: float = 2.0


class Top(msgspec.Struct, frozen=True):
    """A kernel (GPU) or operator (CPU): its calls and own time in the window."""

    name: str
    calls: int
    seconds: float


class RankProfile(msgspec.Struct, frozen=True):
    """One rank's window. Times are seconds.

    Attributes:
        steps, tokens, sampled: steps begun in the window, tokens computed and drawn by them.
        began: unix time of the window's start, by this host's clock.
        shares: time by ``Use``.
        parts: the host's own time in each part of a step, nested parts taken out.
        top: what took longest, falling.
        strip: one letter of ``LETTERS`` for each of equal parts of the window's first ``strip_seconds``.
        events, limited: recorded events; the recording was ended at their limit.
        trace_bytes: size of the trace file, packed.
        unseen: it computes on a GPU of which nothing was recorded: ``shares`` tell of its host alone.
    """

    stage: int
    rank: int
    device: str
    steps: int
    tokens: int
    sampled: int
    began: float
    seconds: float
    shares: dict[str, float]
    parts: dict[str, float]
    top: tuple[Top, ...]
    strip: str
    strip_seconds: float
    events: int
    limited: bool
    trace_bytes: int
    unseen: bool = False

    def share(self, use: Use) -> float:
        """The part of the window, 0 to 1."""
        return self.shares.get(use, 0.0) / self.seconds if self.seconds else 0.0


class ProfileReport(msgspec.Struct, frozen=True):
    """The answer: ``ranks`` by stage and rank. `GET /profile/trace?id=&stage=&rank=` has each one's trace."""

    v: int
    id: str
    group: str
    epoch: int
    model_revision: str
    ranks: tuple[RankProfile, ...]


_report: msgspec.json.Decoder[ProfileReport] = msgspec.json.Decoder(ProfileReport)


def read_report(content: bytes) -> ProfileReport:
    """The answer of `POST /profile`.

    Raises:
        Garbled: it is none.
    """
    try:
        return _report.decode(content)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Garbled(f"no profile: {error}") from error
