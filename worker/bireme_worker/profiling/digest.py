"""`python -m bireme_worker.profiling.digest RAW PACKED`: reads one rank's trace, packs it, says where its time went.

A process of its own, because reading a trace holds the interpreter, and the rank's heartbeat needs it. Stdin has what
only the rank knows (``Facts``), stdout the ``RankProfile``, both JSON. Imports no torch.
"""

import gzip
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from bireme.process import die_with_parent
from bireme.wire.profile import STRIP_BINS, RankProfile
from bireme_worker.profiling import shares
from bireme_worker.profiling.parts import Part
from bireme_worker.profiling.shares import Span

_DEVICE: Final = ("kernel", "gpu_memcpy", "gpu_memset")
_PARTS: Final = frozenset(map(str, Part))
_STRIP_STEPS: Final = 4
_PACKING: Final = 3
"""A quarter of gzip's usual time for a tenth more bytes."""


class Facts(msgspec.Struct, frozen=True):
    """What the rank knows of its recording."""

    stage: int
    rank: int
    device: str
    steps: int
    tokens: int
    sampled: int
    limited: bool


class Event(msgspec.Struct, frozen=True):
    """One event of a Chrome trace, as far as it is needed here."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    tid: int | str = 0
    ts: float = 0.0
    dur: float = 0.0

    @property
    def span(self) -> Span:
        """Its interval."""
        return Span(self.ts, self.ts + self.dur, self.name)


class Trace(msgspec.Struct, frozen=True):
    """A trace file of torch; ``baseTimeNanoseconds`` plus an event's ``ts`` is unix time."""

    traceEvents: tuple[Event, ...]  # noqa: N815  the file's own name
    baseTimeNanoseconds: int = 0  # noqa: N815


class NothingRecorded(Exception):
    """No step lies in the trace."""


def digest(trace: Trace, facts: Facts, trace_bytes: int) -> RankProfile:
    """The sums of one rank.

    Raises:
        NothingRecorded: no step began in the recording.
    """
    events = [event for event in trace.traceEvents if event.ph == "X"]
    marks = [event for event in events if event.cat == "user_annotation" and event.name in _PARTS]
    launches = [mark for mark in marks if mark.name == Part.LAUNCH]
    if not launches:
        raise NothingRecorded("no step began while this rank recorded")
    thread = launches[0].tid
    parts = shares.innermost(mark.span for mark in marks if mark.tid == thread)
    kernels = [event.span for event in events if event.cat in _DEVICE]
    operators = [event.span for event in events if event.cat == "cpu_op" and event.tid == thread]
    begin = min(launch.ts for launch in launches)
    window = (begin, max(span.end for span in (*parts, *kernels)))
    parts = _within(window, parts)
    kernels = _within(window, kernels)
    if kernels:
        ranges = (e.span for e in events if e.cat == "gpu_user_annotation" and e.name == Part.SAMPLING)
        pieces = shares.filled(window, shares.of_device(kernels, ranges), shares.while_idle(parts))
        longest = shares.top(shares.own_times(kernels), (kernel.name for kernel in kernels))
    else:
        pieces = shares.filled(window, shares.of_thread(parts, operators), ())
        mine = _within(window, operators)
        longest = shares.top(shares.own_times(shares.innermost(mine)), (operator.name for operator in mine))
    length = min((window[1] - begin) * min(_STRIP_STEPS / len(launches), 1.0), window[1] - begin)
    return RankProfile(
        stage=facts.stage,
        rank=facts.rank,
        device=facts.device,
        steps=len(launches),
        tokens=facts.tokens,
        sampled=facts.sampled,
        began=round(trace.baseTimeNanoseconds / 1e9 + begin / 1e6, 6),
        seconds=round((window[1] - begin) / 1e6, 9),
        shares=shares.sums(pieces),
        parts={name: round(seconds, 9) for name, seconds in shares.own_times(parts).items()},
        top=longest,
        strip=shares.strip(pieces, STRIP_BINS, length),
        strip_seconds=round(length / 1e6, 9),
        events=len(events),
        limited=facts.limited,
        trace_bytes=trace_bytes,
        unseen=facts.device != "cpu" and facts.tokens > 0 and not kernels,
    )


def _within(window: tuple[float, float], spans: Iterable[Span]) -> list[Span]:
    low, high = window
    cut = (Span(max(span.start, low), min(span.end, high), span.name) for span in spans)
    return [span for span in cut if span.end > span.start]


def main() -> None:
    """The child of a rank; a line on stderr and exit code 1 where the trace can't be read."""
    die_with_parent()
    raw, packed = map(Path, sys.argv[1:])
    facts = msgspec.json.decode(sys.stdin.buffer.read(), type=Facts)
    try:
        content = raw.read_bytes()
        packed.write_bytes(gzip.compress(content, _PACKING))
        raw.unlink()
        found = digest(msgspec.json.decode(content, type=Trace), facts, packed.stat().st_size)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, NothingRecorded) as error:
        sys.exit(f"{raw.name}: {error}")
    sys.stdout.buffer.write(msgspec.json.encode(found))


if __name__ == "__main__":
    main()
