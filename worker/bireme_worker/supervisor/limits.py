"""How long each wait of a supervisor may last; every one ends in a reason, none in silence.

All are seconds of watched time (see ``clock``), so a supervisor that was stopped itself blames nobody for it.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """The waits of section 5 of the design.

    ``silent_s``/``silent_kill_s``: a rank without a Beat is unready, then killed; ``peer_silent_s``: the same for a
    supervisor at the other end of the control channel. ``starting_silent_s``: the same for a rank that starts, loads or
    warms up, where one long call may hold the interpreter. ``progress_s``: work pending and neither step nor layers
    grew. ``ending_s``: a rank that does not leave its epoch is killed. ``loading_s``, ``forming_s``: one checkpoint
    read, one forming of an epoch with warm-up. ``rejoin_s``: a lost peer; beyond it the process exits 75.
    ``stable_s``: an epoch or process that lived this long clears its backoff. ``crashes``: starts in a row that came to
    nothing before the supervisor gives up with 70, ``starved`` the same where there was no memory. ``stop_s``: children
    that were asked to stop are killed. ``ports_s``: a port of this pod is in use; its last holder may still be going.
    ``nonfinite``: so many requests whose logits were not finite, and at least half of all that ended, within
    ``nonfinite_s``: the weights are not trusted.
    """

    silent_s: float = 2.5
    silent_kill_s: float = 5.0
    peer_silent_s: float = 2.5
    starting_silent_s: float = 60.0
    progress_s: float = 8.0
    ending_s: float = 5.0
    loading_s: float = 600.0
    forming_s: float = 60.0
    rejoin_s: float = 1800.0
    stable_s: float = 5.0
    crashes: int = 8
    starved: int = 3
    stop_s: float = 5.0
    ports_s: float = 3.0
    nonfinite: int = 4
    nonfinite_s: float = 60.0


def backoff(failures: int, first_s: float = 0.1, most_s: float = 5.0) -> float:
    """Seconds to wait after ``failures`` failures in a row: the first retry is immediate, then it doubles."""
    return 0.0 if failures <= 1 else min(first_s * 2.0 ** min(failures - 2, 30), most_s)
