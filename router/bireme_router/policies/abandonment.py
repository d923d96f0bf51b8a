"""When an open stream is given up although its connection looks alive: a machine that lost power sends no reset.

Two witnesses are asked: the group's watch, and the stream itself. A new epoch ends every stream of the old one
(they get a handover first, hence the grace); a silent watch counts only together with a silent stream.
"""

from typing import Final

EPOCH_GRACE_S: Final = 1.0
SILENCE_S: Final = 3.0


def why_abandon(*, superseded_for_s: float, unknown_for_s: float, quiet_for_s: float) -> str:
    """Why to give a stream up now, or empty.

    ``superseded_for_s``: how long its group has been in a newer epoch. ``unknown_for_s``: how long its watch has been
    silent. ``quiet_for_s``: how long the stream brought nothing. Zero: not at all.
    """
    if superseded_for_s > EPOCH_GRACE_S:
        return f"its epoch ended {superseded_for_s:.1f} s ago"
    if unknown_for_s > SILENCE_S and quiet_for_s > SILENCE_S:
        return f"neither its group's watch ({unknown_for_s:.1f} s) nor the stream ({quiet_for_s:.1f} s) says anything"
    return ""
