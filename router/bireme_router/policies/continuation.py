"""How to go on after a stream broke: by what the client holds already.

Released text is a pure function of the id prefix and the noise is keyed by seed and position, so the ids that were
delivered are all that another group needs; where no id was delivered, the request itself with the same seed is enough.
"""

from dataclasses import dataclass
from enum import Enum


class GoOn(Enum):
    """The four ways on."""

    COMPLETE = "everything was delivered but the end marker"
    REPEAT = "no token was delivered: send the request again, with the same seed"
    RESUME = "send the delivered ids along"
    GIVE_UP = "can't be continued"


@dataclass(frozen=True)
class Delivered:
    """What the client holds. ``text``: data events that no journal line told; ``usage_due``: usage is still owed."""

    ids: bool
    journalled: bool
    text: bool
    unfinished_choices: int
    usage_due: bool


def how_to_go_on(delivered: Delivered) -> GoOn:
    """The way on that neither repeats nor loses a byte."""
    if delivered.text and not delivered.journalled:
        return GoOn.GIVE_UP
    if not delivered.ids:
        return GoOn.REPEAT
    if delivered.unfinished_choices <= 0 and not delivered.usage_due:
        return GoOn.COMPLETE
    return GoOn.RESUME


def may_try_again(losses: int, attempts: int) -> bool:
    """Whether a request that was lost ``losses`` times in a row without any progress is sent once more."""
    return losses < attempts
