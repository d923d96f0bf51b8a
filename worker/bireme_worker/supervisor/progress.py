"""The progress rule: which rank is silent, stuck or too slow to start. Pure; time is watched time.

Idle is healthy for days. Busy is healthy while steps or layers grow. Silence makes a rank unready first and costs it
its life only later, so that a short stop (a debugger, a full disk, a paused virtual machine) keeps its weights.
"""

from dataclasses import dataclass
from enum import Enum

from bireme.wire.control import RankBeat
from bireme_worker.supervisor.limits import Limits
from bireme_worker.supervisor.stage import RankPhase


class Verdict(Enum):
    """What the rule says of a rank."""

    FINE = "fine"
    SILENT = "silent"
    STUCK = "stuck"
    KILL = "kill"


@dataclass
class RankProgress:
    """What was heard of one rank process. ``since``: in this phase; ``moved``: a step or layer; ``busy``: has work."""

    since: float
    heard: float
    moved: float
    busy: float
    phase: RankPhase = RankPhase.LOADING
    beat: RankBeat | None = None

    @classmethod
    def started(cls, now: float) -> "RankProgress":
        """A process that was started at ``now``."""
        return cls(since=now, heard=now, moved=now, busy=now)

    def hear(self, beat: RankBeat, now: float) -> None:
        """A Beat came."""
        old = self.beat
        if old is None or _position(beat) != _position(old):
            self.moved = now
        if old is None or not old.busy:
            self.busy = now
        self.beat, self.heard = beat, now

    def enter(self, phase: RankPhase, now: float) -> None:
        """The rank went to another phase."""
        if phase is not self.phase:
            self.phase, self.since = phase, now

    def step_age(self, now: float) -> float:
        """Seconds since the rank last moved on while it has work, else 0."""
        return now - max(self.moved, self.busy, self.since) if self.beat is not None and self.beat.busy else 0.0


def _position(beat: RankBeat) -> tuple[int, int, int]:
    return beat.epoch, beat.step, beat.layers


def judge(rank: RankProgress, limits: Limits, now: float) -> tuple[Verdict, str]:
    """What to do about this rank, and why."""
    silence, phase_age = now - rank.heard, now - rank.since
    starting = rank.phase in (RankPhase.LOADING, RankPhase.FORMING)
    if starting and silence > limits.starting_silent_s:
        return Verdict.KILL, f"no beat for {silence:.1f} s while {rank.phase}"
    if rank.phase is RankPhase.LOADING and phase_age > limits.loading_s:
        return Verdict.KILL, f"did not load the checkpoint within {limits.loading_s:g} s"
    if not starting and silence > limits.silent_kill_s:
        return Verdict.KILL, f"no beat for {silence:.1f} s"
    if rank.phase is RankPhase.ENDING and now - max(rank.moved, rank.since) > limits.ending_s:
        return Verdict.KILL, f"did not leave the epoch within {limits.ending_s:g} s"
    if not starting and silence > limits.silent_s:
        return Verdict.SILENT, f"no beat for {silence:.1f} s"
    if rank.phase is RankPhase.SERVING and rank.step_age(now) > limits.progress_s:
        return Verdict.STUCK, f"busy, and no step or layer for {limits.progress_s:g} s"
    return Verdict.FINE, ""
