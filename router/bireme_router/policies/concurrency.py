"""How many requests of a class one group may have in flight: its slots are busy, its own queue stays short.

What waits should wait here, where it can be ordered by class and key and sent to whoever is free first. One request per
pipeline stage goes ahead to the group's queue, so that a freed slot never waits for a round trip. While interactive
requests are about, an eighth of the slots is kept for them, and batch leaves an eighth to the standard class. Slots say
nothing of long prompts, so what is sent ahead is bounded by prefill time too.
"""

from dataclasses import dataclass
from typing import Final

from bireme_router.policies.priority import Priority

KEPT_SHARE: Final = 8
PREFILL_AHEAD_S: Final = {Priority.INTERACTIVE: 30.0, Priority.STANDARD: 1.0, Priority.BATCH: 0.5}
"""Seconds of uncached prompts that a group may have before it when one more request of the class is sent."""
RECENT_S: Final = 30.0
"""How long after the last interactive request its slots are still kept."""


def prefill_full(ahead_s: float, in_flight: int, stages: int, priority: Priority) -> bool:
    """Whether the prompts ahead are long enough for a request to wait here; no stage is left without work."""
    return in_flight >= stages and ahead_s > PREFILL_AHEAD_S[priority]


@dataclass(frozen=True)
class Slots:
    """A leader's own limits: slots, places in its queue, and pipeline stages. ``running`` 0: unlimited."""

    running: int
    queue: int
    stages: int


def most_in_flight(slots: Slots, priority: Priority, *, interactive_about: bool, ramp: float) -> int:
    """Requests that the group may have when one more of ``priority`` comes in; at least one of them always fits.

    ``ramp``: share of its capacity that a returning group gets, 0 to 1 (``slow_start``).
    """
    kept = max(slots.running // KEPT_SHARE, 1)
    match priority:
        case Priority.INTERACTIVE:
            most = slots.running + slots.queue
        case Priority.STANDARD if interactive_about:
            most = slots.running - kept
        case Priority.STANDARD:
            most = slots.running + min(slots.stages, slots.queue)
        case _:
            most = slots.running - kept * (2 if interactive_about else 1)
    return max(int(most * ramp), 1)
