"""When logits that are not finite are no longer a request's own fault but the group's.

One request may bring itself there, and fails alone. If most of what ended lately failed so, the weights in memory or a
device are broken: the group calls itself unhealthy and every rank reads its weights anew. Pure.
"""

from collections import deque

from bireme_worker.coordinator.messages import Status
from bireme_worker.supervisor.limits import Limits


class NonfiniteWatch:
    """Looks at the coordinator's counters, which start from zero with each coordinator."""

    def __init__(self, limits: Limits, now: float) -> None:
        self._limits = limits
        self.reset(now)

    def reset(self, now: float) -> None:
        """A new coordinator counts from zero."""
        self._seen = deque([(now, 0, 0)])

    def hear(self, status: Status, now: float) -> str:
        """Why the group is unhealthy, or nothing; what has been told counts no more."""
        limits, seen = self._limits, self._seen
        failed, ended = status.nonfinite, sum(status.finished.values())
        if (failed, ended) != seen[-1][1:]:
            seen.append((now, failed, ended))
        while len(seen) > 1 and seen[1][0] <= now - limits.nonfinite_s:
            seen.popleft()
        bad, all_of_them = failed - seen[0][1], ended - seen[0][2]
        if bad < limits.nonfinite or 2 * bad < all_of_them:
            return ""
        self._seen = deque([(now, failed, ended)])
        return (
            f"{bad} of {all_of_them} requests within {limits.nonfinite_s:g} s had logits that are not finite: "
            "every rank reads its weights anew"
        )
