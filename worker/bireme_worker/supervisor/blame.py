"""Which of several causes of one loss is the one to tell.

A cause that says more replaces one that says less: a lost stage also looks like lost ranks to its peers, and a lost
rank like a broken connection.
"""

from typing import Final

from bireme.names import Reason

COLLATERAL: Final = 0
"""The weight of what only followed from something else."""
_WEIGHTS: Final = {
    Reason.HUNG: 3,
    Reason.DEVICE_ERROR: 3,
    Reason.OUT_OF_MEMORY: 3,
    Reason.STAGE_LOST: 2,
    Reason.LEADER_LOST: 2,
}


def weight_of(reason: str) -> int:
    """How much a reason says; words that are not listed weigh 1."""
    return next((weight for word, weight in _WEIGHTS.items() if word == reason), 1)
