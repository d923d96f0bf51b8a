"""Where the time of a recorded window went: sums over intervals. Pure; times are microseconds of the trace's clock.

On a GPU the device's own intervals say what it did, and while it idled the host's part of a step says why. On a CPU
the computing thread is the device: inside computing parts, where no operator runs, the interpreter prepares the next.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from bireme.wire.profile import LETTERS, Top, Use
from bireme_worker.profiling.parts import KERNELS, USES, Part

MOST_TOP: Final = 12
LONGEST_NAME: Final = 96
COMPUTES: Final = (Use.COMPUTE, Use.SAMPLING)


class Span(NamedTuple):
    """Something that took from ``start`` to ``end``."""

    start: float
    end: float
    name: str


class Piece(NamedTuple):
    """A part of the window with one use."""

    start: float
    end: float
    use: Use


def innermost(spans: Iterable[Span]) -> list[Span]:
    """Cut nested spans of one thread into disjoint ones, each named by the innermost that covers it."""
    out: list[Span] = []
    stack: list[Span] = []
    at = float("-inf")

    def upto(moment: float) -> None:
        nonlocal at
        if stack and moment > at:
            out.append(Span(at, moment, stack[-1].name))
        at = max(at, moment)

    for span in sorted(spans, key=lambda span: (span.start, -span.end)):
        while stack and stack[-1].end <= span.start:
            upto(stack[-1].end)
            stack.pop()
        upto(span.start)
        stack.append(Span(span.start, min(span.end, stack[-1].end) if stack else span.end, span.name))
    while stack:
        upto(stack[-1].end)
        stack.pop()
    return out


def union(spans: Iterable[Span]) -> list[tuple[float, float]]:
    """Disjoint intervals, rising, that cover what any of ``spans`` covers."""
    merged: list[tuple[float, float]] = []
    for start, end, _ in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def of_thread(parts: Iterable[Span], operators: Iterable[Span]) -> list[Piece]:
    """What a computing thread did: ``parts`` are disjoint and rising."""
    running = iter(union(operators))
    current = next(running, None)
    out: list[Piece] = []
    for start, end, name in parts:
        use, at = USES[Part(name)], start
        if use not in COMPUTES:
            out.append(Piece(start, end, use))
            continue
        while current is not None and current[0] < end:
            if current[1] > at:
                out += _cut(at, max(current[0], at), Use.GAP)
                out += _cut(max(current[0], at), min(current[1], end), use)
                at = min(current[1], end)
            if current[1] > end:
                break
            current = next(running, None)
        out += _cut(at, end, Use.GAP)
    return out


def of_device(kernels: Iterable[Span], sampling: Iterable[Span]) -> list[Piece]:
    """What a GPU did; kernels inside ``sampling`` ranges of the device sample. Of overlapping ones the first counts."""
    ranges = iter(union(sampling))
    inside = next(ranges, None)
    out: list[Piece] = []
    at = float("-inf")
    for start, end, name in sorted(kernels):
        while inside is not None and inside[1] <= start:
            inside = next(ranges, None)
        samples = inside is not None and inside[0] <= start
        use = KERNELS.get(name, Use.SAMPLING if samples else Use.COMPUTE)
        out += _cut(max(start, at), end, use)
        at = max(at, end)
    return out


def while_idle(parts: Iterable[Span]) -> list[Piece]:
    """Why a device that idles during these parts of its host does so: a computing part has not launched yet."""
    uses = ((start, end, USES[Part(name)]) for start, end, name in parts)
    return [Piece(start, end, Use.GAP if use in COMPUTES else use) for start, end, use in uses]


def filled(window: tuple[float, float], first: Sequence[Piece], second: Sequence[Piece]) -> list[Piece]:
    """The whole window: ``first`` where it says something, else ``second``, else a gap. Both disjoint and rising."""
    return list(_fill(window, first, list(_fill(window, second, ()))))


def _fill(window: tuple[float, float], pieces: Iterable[Piece], rest: Sequence[Piece]) -> Iterator[Piece]:
    at, place = window[0], 0
    for start, end, use in (*pieces, Piece(window[1], window[1], Use.GAP)):
        hole_end = min(start, window[1])
        while place < len(rest) and rest[place].end <= at:
            place += 1
        look = place
        while at < hole_end and look < len(rest) and rest[look].start < hole_end:
            yield from _cut(at, max(rest[look].start, at), Use.GAP)
            yield from _cut(max(rest[look].start, at), min(rest[look].end, hole_end), rest[look].use)
            at = max(at, min(rest[look].end, hole_end))
            look += 1
        yield from _cut(at, hole_end, Use.GAP)
        at = max(at, hole_end)
        yield from _cut(max(start, at), min(end, window[1]), use)
        at = max(at, min(end, window[1]))


def sums(pieces: Iterable[Piece]) -> dict[str, float]:
    """Seconds by use; every use is there."""
    total: dict[str, float] = dict.fromkeys(Use, 0.0)
    for start, end, use in pieces:
        total[use] += (end - start) / 1e6
    return {str(use): round(seconds, 9) for use, seconds in total.items()}


def own_times(spans: Iterable[Span]) -> dict[str, float]:
    """Seconds by name, of disjoint spans."""
    total: defaultdict[str, float] = defaultdict(float)
    for start, end, name in spans:
        total[name] += (end - start) / 1e6
    return dict(total)


def top(times: Mapping[str, float], names: Iterable[str]) -> tuple[Top, ...]:
    """The longest of ``times``; ``names`` has one entry a call."""
    calls = Counter(names)
    longest = sorted(times.items(), key=lambda item: -item[1])[:MOST_TOP]
    return tuple(Top(name[:LONGEST_NAME], calls[name], round(seconds, 9)) for name, seconds in longest)


def strip(pieces: Sequence[Piece], bins: int, length: float) -> str:
    """The first ``length`` microseconds in ``bins`` equal parts, each named by what took most of it."""
    if not pieces or length <= 0:
        return ""
    begin, width = pieces[0].start, length / bins
    totals: list[Counter[Use]] = [Counter() for _ in range(bins)]
    for start, end, use in pieces:
        first, last = int((start - begin) / width), int((end - begin) / width)
        for place in range(first, min(last + 1, bins)):
            low = begin + place * width
            totals[place][use] += min(end, low + width) - max(start, low)  # type: ignore[assignment]
    return "".join(LETTERS[total.most_common(1)[0][0]] if total else LETTERS[Use.GAP] for total in totals)


def _cut(start: float, end: float, use: Use) -> list[Piece]:
    return [Piece(start, end, use)] if end > start else []
