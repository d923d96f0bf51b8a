"""A group that returns gets its share back step by step: its caches are cold, and a failure may repeat itself.

The ramp is relative to the warmest group, so a lone group, or a fleet that starts together, is not held back at all.
"""

from collections.abc import Sequence
from typing import Final

RAMP_S: Final = 10.0
FIRST: Final = 0.1


def ramps(ready_for_s: Sequence[float]) -> list[float]:
    """The share of its capacity that each group gets, by how long each has been ready."""
    own = [FIRST + (1.0 - FIRST) * min(max(age, 0.0) / RAMP_S, 1.0) for age in ready_for_s]
    warmest = max(own, default=1.0)
    return [share / warmest for share in own]
