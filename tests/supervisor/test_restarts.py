"""How often a child is started again before its supervisor gives up, and with which words."""

import pytest

from bireme.names import Exit, Reason
from bireme_worker.supervisor.clock import WatchedClock
from bireme_worker.supervisor.limits import Limits
from bireme_worker.supervisor.restarts import Restarts
from bireme_worker.supervisor.state_file import Termination
from bireme_worker.supervisor.watch import Watch

LIMITS = Limits(crashes=8, starved=3)


@pytest.mark.parametrize(
    ("blame", "ends", "reason", "told"),
    [
        (None, 8, Reason.CRASH_LOOP, "rank 0 was ended by SIGKILL, 8 times in a row"),
        ((Reason.HUNG, "no step in 8 s"), 8, Reason.CRASH_LOOP, "rank 0: no step in 8 s, 8 times in a row"),
        ((Reason.OUT_OF_MEMORY, "no memory"), 3, Reason.OUT_OF_MEMORY, "rank 0: no memory, 3 times in a row"),
    ],
)
def test_it_gives_up_with_the_words_of_the_cause_and_sooner_where_there_is_no_memory(
    blame: tuple[str, str] | None, ends: int, reason: Reason, told: str
) -> None:
    said: list[Termination] = []
    restarts = Restarts("rank 0", Watch(WatchedClock(0.0), LIMITS, said.append))
    for _ in range(ends - 1):
        restarts.ended(-9, "", proved=False, blame=blame)
    assert not said
    restarts.ended(-9, "", proved=False, blame=blame)
    assert said == [Termination(Exit.INTERNAL, reason, told)]
