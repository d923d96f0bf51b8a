"""Logits that are not finite: one request's own fault until most requests fail so, then the group's."""

import pytest

from bireme.names import Reason
from bireme.wire.control import End, Ended, Load, Loaded, Lost
from bireme_worker.coordinator.messages import Finish, Status
from bireme_worker.supervisor import events as ev
from bireme_worker.supervisor.limits import Limits
from bireme_worker.supervisor.nonfinite import NonfiniteWatch
from bireme_worker.supervisor.stage import Kill, ToLeader
from tests.supervisor.test_membership import CHECKPOINT, FIRST, Driver
from tests.supervisor.test_stage import _serving

LIMITS = Limits()
SOME = int(LIMITS.nonfinite)


def status(failed: int, fine: int = 0) -> Status:
    finished = {"error": failed, "stop": fine}
    return Status(FIRST, 0, 0, 0, 0, 0, 0, 0.0, False, 0, 0, 0, finished, nonfinite=failed)


def test_one_request_less_than_the_stated_number_changes_nothing() -> None:
    watch = NonfiniteWatch(LIMITS, 0.0)
    assert watch.hear(status(SOME - 1), 1.0) == ""
    assert f"{SOME} of {SOME} requests within 60 s" in watch.hear(status(SOME), 2.0)


def test_what_lies_longer_back_than_the_window_counts_no_more() -> None:
    watch = NonfiniteWatch(LIMITS, 0.0)
    for number in range(1, 4 * SOME):
        assert watch.hear(status(number), number * LIMITS.nonfinite_s / (SOME - 1)) == ""


def test_a_client_whose_requests_fail_among_many_that_do_not_is_alone_with_it() -> None:
    watch = NonfiniteWatch(LIMITS, 0.0)
    for number in range(1, 4 * SOME):
        assert watch.hear(status(number, 2 * number), 0.1 * number) == ""


def test_a_new_coordinator_counts_from_zero_and_what_was_told_counts_no_more() -> None:
    watch = NonfiniteWatch(LIMITS, 0.0)
    assert watch.hear(status(SOME), 1.0)
    assert watch.hear(status(SOME + 1), 2.0) == ""
    watch.reset(3.0)
    assert watch.hear(status(SOME - 1), 4.0) == ""
    assert watch.hear(status(SOME), 5.0)


def test_the_epoch_ends_with_a_reason_of_its_own_and_no_weights_are_trusted() -> None:
    drive = Driver()
    drive.serve()
    drive(ev.CoordinatorSaid(status(SOME)))
    assert drive.state == ("Recovering", "NonFinite")
    assert drive.sent(End) == [(1, End(FIRST, "NonFinite")), (2, End(FIRST, "NonFinite"))]
    assert drive.told(Finish)[0].reason == "NonFinite"
    drive(ev.Said(1, Ended(FIRST)), ev.Said(2, Ended(FIRST)))
    assert drive.machine.epoch == 0, "what was loaded is not good enough"
    drive(ev.Said(1, Loaded(CHECKPOINT, 5)), ev.Said(2, Loaded(CHECKPOINT, 5)))
    assert drive.machine.epoch == FIRST + 1


def test_a_stage_ends_its_ranks_and_says_loaded_only_for_new_ones() -> None:
    stage = _serving()
    actions = stage.leader_said(End(5, Reason.NON_FINITE))
    assert [action.rank for action in actions if isinstance(action, Kill)] == [0, 1]
    told = []
    for rank in (0, 1):
        told += stage.rank_down(rank, "NonFinite", f"rank {rank}: not trusted")
    assert [type(action.message) for action in told if isinstance(action, ToLeader)] == [Lost, Lost, Ended]
    for rank in (0, 1):
        [load] = stage.rank_up(rank)
        assert load.message == Load(CHECKPOINT)
        told = stage.rank_said(rank, Loaded(CHECKPOINT, 10, rank))
    assert [action.message for action in told if isinstance(action, ToLeader)] == [Loaded(CHECKPOINT, 10)]


@pytest.mark.parametrize("reason", [Reason.OUT_OF_MEMORY, Reason.DEVICE_ERROR, Reason.NON_FINITE])
def test_memory_device_and_numbers_each_show_by_their_own_name(reason: Reason) -> None:
    drive = Driver()
    drive.serve()
    drive(ev.Said(1, Lost(FIRST, Reason.RANK_LOST, "rank 0: lost a peer", collateral=True)))
    drive(ev.Said(2, Lost(FIRST, reason, "rank 1: why")))
    assert drive.state == ("Recovering", str(reason))
    assert drive.machine.standing.message.startswith("stage 1: rank 1: why")
