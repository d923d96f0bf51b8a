"""What the event log of a run says about each start and recovery of a group. Pure.

A recovery begins with the first sign of a loss and ends when the group serves again. Its steps are those of the
design: detect, abort (survivors leave the epoch), rejoin (the lost process runs again), load, warm, serve.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

import msgspec

from bireme.names import GroupState

STEPS: Final = ("detect", "abort", "rejoin", "load", "warm", "serve")
_STEP_OF_PHASE: Final = {"Ending": "abort", "Loading": "load", "Forming": "warm"}
_GOOD: Final = (GroupState.SERVING, GroupState.DRAINING)


class Line(msgspec.Struct, frozen=True):
    """One line of events.jsonl; see bireme_operator.local.event_log."""

    at: float
    kind: str
    group: int
    stage: int = -1
    rank: int = -1
    pid: int = 0
    phase: str = ""
    state: str = ""
    reason: str = ""
    message: str = ""
    epoch: int = 0
    event: str = ""
    restarts: int = 0


@dataclass(frozen=True)
class Moment:
    """Something that happened: seconds after the beginning, the step it belongs to, what."""

    after_s: float
    step: str
    text: str


@dataclass
class Bar:
    """One process in one phase, in seconds after the beginning."""

    row: str
    phase: str
    from_s: float
    to_s: float


@dataclass
class Recovery:
    """One start or recovery of a group. ``took_s`` None: it has not ended yet."""

    group: int
    began: float
    first: bool
    cause: str = ""
    took_s: float | None = None
    moments: list[Moment] = field(default_factory=list)
    bars: list[Bar] = field(default_factory=list)

    @property
    def title(self) -> str:
        """One line."""
        what = "start" if self.first else "recovery"
        who, does = (f"group {self.group}", "serving") if self.group >= 0 else ("router", "running")
        end = f"not {does} yet" if self.took_s is None else f"{does} after {self.took_s:.2f} s"
        return f"{who}: {what}, {end}" + (f": {self.cause}" if self.cause else "")

    def steps(self) -> dict[str, tuple[float, float]]:
        """First and last moment of each step that was seen, in seconds."""
        times: dict[str, list[float]] = {}
        for moment in self.moments:
            times.setdefault(moment.step, []).append(moment.after_s)
        return {step: (min(times[step]), max(times[step])) for step in STEPS if step in times}


def recoveries(lines: Iterable[Line]) -> list[Recovery]:
    """All starts and recoveries of groups, in the order in which they began."""
    readers: dict[int, _Reader] = {}
    for line in lines:
        if line.kind == "router":
            continue
        readers.setdefault(line.group, _Reader(line.group)).read(line)
    found = [recovery for reader in readers.values() for recovery in reader.finished()]
    return sorted(found, key=lambda recovery: recovery.began)


class _Reader:
    """Follows one group."""

    def __init__(self, group: int) -> None:
        self._group = group
        self._state = ""
        self._now: Recovery | None = None
        self._done: list[Recovery] = []
        self._last: dict[tuple[str, int, int], Line] = {}
        self._open: dict[str, Bar] = {}

    def read(self, line: Line) -> None:
        key = (line.kind, line.stage, line.rank)
        before, self._last[key] = self._last.get(key), line
        match line.kind:
            case "group":
                self._group_line(line)
            case "rank":
                self._process_line(line, before, f"stage {line.stage} rank {line.rank}")
            case "pod":
                self._process_line(line, before, f"stage {line.stage}")
            case _:
                pass

    def finished(self) -> list[Recovery]:
        return self._done + ([self._now] if self._now is not None else [])

    def _group_line(self, line: Line) -> None:
        old, self._state = self._state, line.state
        if line.state == GroupState.SERVING:
            self._serve(line)
            return
        if line.state in _GOOD:
            return
        recovery = self._recovery(line.at)
        cause = f"{line.reason}: {line.message}" if line.message else line.reason
        if not recovery.cause and not recovery.first:
            recovery.cause = cause
        step = "detect" if old == GroupState.SERVING else "wait"
        self._note(line.at, step, f"{line.state} ({cause})")

    def _serve(self, line: Line) -> None:
        if self._now is None:
            return
        self._note(line.at, "serve", f"serves epoch {line.epoch}")
        recovery, self._now = self._now, None
        recovery.took_s = round(line.at - recovery.began, 3)
        for row in list(self._open):
            self._close(row, recovery, line.at)
        self._done.append(recovery)

    def _process_line(self, line: Line, before: Line | None, who: str) -> None:
        quiet = self._now is None and self._state == GroupState.SERVING
        if quiet and line.phase in ("Serving", "Running") and before is not None and before.pid == line.pid:
            return
        if self._state == GroupState.DRAINING or line.phase == "Deleting":
            return
        recovery = self._recovery(line.at)
        for step, text in _told(line, before):
            self._note(line.at, step, f"{who}: {text}")
        if line.kind == "rank":
            self._close(who, recovery, line.at)
            if line.phase not in ("Serving", "Idle"):
                self._open[who] = Bar(who, line.phase, line.at - recovery.began, 0.0)

    def _recovery(self, at: float) -> Recovery:
        if self._now is None:
            self._now = Recovery(self._group, at, first=not self._done)
        return self._now

    def _note(self, at: float, step: str, text: str) -> None:
        recovery = self._recovery(at)
        recovery.moments.append(Moment(round(at - recovery.began, 3), step, text))

    def _close(self, row: str, recovery: Recovery, at: float) -> None:
        if bar := self._open.pop(row, None):
            bar.to_s = round(at - recovery.began, 3)
            recovery.bars.append(bar)


def _told(line: Line, before: Line | None) -> Iterator[tuple[str, str]]:
    """Steps and words of one process's line."""
    if line.kind == "pod":
        if line.phase != "Running":
            yield "detect", f"process {line.pid or ''} ended: {line.message or line.phase}"
        elif before is None or before.pid != line.pid:
            yield "rejoin", f"started as process {line.pid}"
        return
    replaced = before is not None and before.pid != line.pid
    if replaced and before is not None and before.phase != "Down":
        yield "detect", f"process {before.pid} is gone"
    if line.phase == "Down":
        yield "detect", "down"
        return
    if line.pid and (before is None or replaced):
        yield "rejoin", f"process {line.pid}"
    yield from _phase_told(line, before)


def _phase_told(line: Line, before: Line | None) -> Iterator[tuple[str, str]]:
    old = before.phase if before is not None else ""
    if old == line.phase:
        return
    if line.phase == "Serving":
        yield "warm", "formed and warm"
    elif line.phase in _STEP_OF_PHASE:
        yield _STEP_OF_PHASE[line.phase], line.phase.lower()
    elif line.phase == "Idle" and old in _STEP_OF_PHASE:
        yield _STEP_OF_PHASE[old], "left the epoch" if old == "Ending" else "weights are in place"
