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
    Reason.NON_FINITE: 3,
    Reason.STAGE_LOST: 2,
    Reason.LEADER_LOST: 2,
}


def weight_of(reason: str) -> int:
    """How much a reason says; words that are not listed weigh 1."""
    return next((weight for word, weight in _WEIGHTS.items() if word == reason), 1)


class Blame:
    """What was lost since the group last served. ``trouble``: the same before it ever did."""

    def __init__(self) -> None:
        self.cause: tuple[str, str] | None = None
        self.trouble = ""
        self._weight = COLLATERAL

    def note(self, reason: str, text: str, *, serving: bool, collateral: bool = False) -> None:
        """Something was lost, while the group was serving or not."""
        weight = COLLATERAL if collateral else weight_of(reason)
        if self.cause is None and not serving:
            self.trouble = text if weight or not self.trouble else self.trouble
        elif self.cause is None or weight > self._weight:
            self.cause, self._weight = (reason, text), weight

    def clear(self) -> None:
        """It serves."""
        self.cause, self.trouble = None, ""
