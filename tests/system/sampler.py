"""Watches what the status says against what happened: one sample each 200 ms, compared afterwards.

Within which time a thing shows is judged where the machine has nothing else to do; elsewhere, that it shows at all.
"""

import threading
import time
from dataclasses import dataclass
from typing import Self

from tests.support.deployment import Deployment

PERIOD_S = 0.2
ALLOWED_S = 1.0


@dataclass(frozen=True)
class Sample:
    """What status and `/readyz` said about one group at one moment."""

    at: float
    group: int
    state: str
    epoch: int
    ready: bool


class StatusSampler:
    """Samples in a thread while the ``with`` block runs; ``fault`` notes what was done to whom."""

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.samples: list[Sample] = []
        self.faults: list[tuple[float, int]] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def fault(self, group: int, at: float) -> None:
        """Note a fault of ``group``, at a time of the monotonic clock."""
        self.faults.append((at, group))

    def _run(self) -> None:
        while not self._done.wait(PERIOD_S):
            self._look()
        self._look()

    def _look(self) -> None:
        for group in self._deployment.groups():
            ready = self._deployment.ready(group["index"])
            self.samples.append(Sample(time.monotonic(), group["index"], group["state"], group.get("epoch", 0), ready))

    def check(self, *, timed: bool) -> None:
        """Every fault shows, and in the end status agrees with `/readyz`; ``timed``: within a second, and always."""
        allowed_s = ALLOWED_S + PERIOD_S if timed else float("inf")
        for at, group in self.faults:
            mine = [sample for sample in self.samples if sample.group == group]
            before = max((s.epoch for s in mine if s.at <= at), default=0)
            shown = [s for s in mine if at < s.at <= at + allowed_s and (s.state != "Serving" or s.epoch > before)]
            assert shown, f"status did not show the fault of group {group} within {allowed_s} s: {mine}"
        last = {sample.group: sample for sample in self.samples}
        assert all((one.state, one.ready) == ("Serving", True) for one in last.values()), last
        if timed:
            self._check_agreement()

    def _check_agreement(self) -> None:
        """Status agrees with every `/readyz` that is older than a second."""
        for sample in self.samples:
            recent = [
                s.ready
                for s in self.samples
                if s.group == sample.group and sample.at - ALLOWED_S - PERIOD_S <= s.at <= sample.at
            ]
            if len(recent) >= 5 and len(set(recent)) == 1:
                assert (sample.state == "Serving") == sample.ready, f"status and /readyz disagree: {sample}"
