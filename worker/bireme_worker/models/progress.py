"""How far a rank is: written by its main thread, read by the thread that sends heartbeats.

Plain attributes: each is one machine word that one thread writes, and a reader that is one step late does no harm.
"""

from dataclasses import dataclass


@dataclass(slots=True)
class Progress:
    """``layers`` grows with every layer computed, so that a long prefill is seen to progress."""

    phase: str = "Spawned"
    epoch: int = 0
    step: int = 0
    layers: int = 0
    busy: bool = False
