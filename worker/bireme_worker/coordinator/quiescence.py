"""The way to a point where no weights are at work, so that others can take their place.

Finishing lets all that has begun end, for a while; then, or at once, no more plans go out and the last results come in.
"""

from dataclasses import dataclass

from bireme_worker.engine.scheduler import Scheduler


@dataclass
class Quiescence:
    """One reload as the coordinator sees it. After ``until`` no plan goes out; ``told``: the point was reached."""

    generation: int
    text: str
    until: float
    told: bool = False

    def stopped(self, now: float) -> bool:
        """Whether no plan may go out."""
        return self.told or now >= self.until

    def reached(self, scheduler: Scheduler, now: float) -> bool:
        """Whether nothing is in flight and nothing will be."""
        return scheduler.in_flight == 0 if now >= self.until else scheduler.settled
