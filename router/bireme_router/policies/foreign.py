"""How far a leader's own figures correct this router's accounts: slowly, because they are old when they come.

What others send there lasts (a second router, a client that goes to the group directly) or is gone by the next update.
Believed at once, each router would run from where the other just was: two routers swing against each other, and are
less balanced than with their own accounts alone. So the difference is averaged over many updates.
"""

import math
from typing import Final

from bireme_router.policies.cost import Work

MEMORY_S: Final = 10.0


def corrected(before: Work, said: Work, elapsed_s: float) -> Work:
    """The foreign work to reckon with, ``elapsed_s`` after ``before``, when the leader now says ``said``."""
    weight = 1.0 - math.exp(-max(elapsed_s, 0.0) / MEMORY_S)
    return Work(
        before.prefill + weight * (said.prefill - before.prefill),
        before.blocks + weight * (said.blocks - before.blocks),
    )
