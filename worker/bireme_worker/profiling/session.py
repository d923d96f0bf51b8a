"""One profile on one rank: what its serving thread does between two steps.

Torch records the thread that starts it, so the serving thread itself starts and ends the recording. First one step is
recorded for nothing: the first start costs most, and the number of its events says how many steps may follow. To end a
recording holds the interpreter, 4 to 20 microseconds an event, and the heartbeat with it: hence the limit of events.
"""

import threading
from collections.abc import Callable
from enum import Enum
from typing import Final

import torch

from bireme.wire.control import Profile
from bireme.wire.plan import Plan
from bireme_worker.profiling.marks import MARKER, Maker

MOST_EVENTS: Final = {"cpu": 30_000, "cuda": 100_000}
"""A GPU's host has cores for its ranks; a CPU's ranks share them, and each event takes several times as long to end."""

Recording = torch.autograd.profiler.profile


class Phase(Enum):
    """In this order; each is left by the serving thread but WARMING and READY."""

    WARMING = "warming"
    ARMED = "armed"
    COUNTING = "counting"
    READY = "ready"
    GO = "go"
    RECORDING = "recording"
    OVER = "over"


class Session:
    """``remark`` tells the runner that marks came or went. ``counted`` and ``ended`` are set on the way, or at once."""

    def __init__(self, asked: Profile, device: torch.device, remark: Callable[[], None]) -> None:
        self.asked = asked
        self.device = device
        self.error = ""
        self.steps = self.tokens = self.sampled = 0
        self.limited = False
        self.trace: Recording | None = None
        self.counted, self.go, self.ended = threading.Event(), threading.Event(), threading.Event()
        self._remark = remark
        self._phase = Phase.WARMING
        self._recording: Recording | None = None
        self._before: Maker | None = None
        self._most_steps = 0
        self._finish = False
        self._lock = threading.Lock()

    def arm(self) -> None:
        """The next step may be counted."""
        self._leave_phase(Phase.WARMING, Phase.ARMED)

    def record(self) -> None:
        """All ranks are ready."""
        self._leave_phase(Phase.READY, Phase.GO)
        self.go.set()

    def finish(self) -> None:
        """End the recording at the next turn."""
        self._finish = True

    def give_up(self, error: str) -> None:
        """For any thread: a recording, if there is one, is dropped at the next turn."""
        self.error = self.error or error
        self._finish = True
        for event in (self.counted, self.go):
            event.set()

    def turn(self, plan: Plan | None) -> None:
        """On the serving thread, before it launches ``plan`` (None: it was woken)."""
        with self._lock:
            if self.error:
                self._leave()
            elif self._phase is Phase.ARMED and plan is not None:
                self._start(Phase.COUNTING)
            elif self._phase is Phase.COUNTING and plan is not None:
                self._count()
            elif self._phase is Phase.GO:
                self._start(Phase.RECORDING)
            elif self._phase is Phase.RECORDING and (self._finish or self.steps >= self._most_steps):
                self._end()
            if self._phase is Phase.RECORDING and plan is not None:
                self.steps += 1
                self.tokens += sum(row.count for row in plan.rows)
                self.sampled += sum(row.output >= 0 for row in plan.rows)

    def leave(self, error: str) -> None:
        """On the serving thread: it leaves the epoch."""
        self.give_up(error)
        with self._lock:
            self._leave()

    def _leave(self) -> None:
        if self._recording is not None:
            self._stop()
        self._phase = Phase.OVER
        self.ended.set()

    def _start(self, phase: Phase) -> None:
        # Without Kineto a GPU is timed by an event around each operator, and no kernel is recorded.
        recording = Recording(use_device="cuda" if self.device.type == "cuda" else None, use_kineto=True)
        try:
            recording.__enter__()  # type: ignore[no-untyped-call]
        except RuntimeError as error:  # another one records in this process
            self.give_up(str(error))
            self._leave()
            return
        self._recording, self._phase = recording, phase
        self._before, MARKER.make = MARKER.make, torch.autograd.profiler.record_function
        self._remark()

    def _stop(self) -> Recording:
        recording, self._recording = self._recording, None
        assert recording is not None
        MARKER.make = self._before
        self._remark()
        recording.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        return recording

    def _count(self) -> None:
        results = self._stop().kineto_results
        events = len(results.events()) if results is not None else 0
        bound = max(MOST_EVENTS[self.device.type] // max(events, 1), 1)
        self._most_steps = min(self.asked.steps or bound, bound)
        self._phase = Phase.READY
        self.counted.set()

    def _end(self) -> None:
        self.limited = self.steps >= self._most_steps and self._most_steps != self.asked.steps
        self.trace = self._stop()
        self._phase = Phase.OVER
        self.ended.set()

    def _leave_phase(self, old: Phase, new: Phase) -> None:
        with self._lock:
            if self._phase is old:
                self._phase = new
