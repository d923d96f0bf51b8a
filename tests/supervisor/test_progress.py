"""The progress rule: silence, stuck work, slow starts; and never a false alarm."""

from bireme.wire.control import RankBeat
from bireme_worker.supervisor.clock import WatchedClock
from bireme_worker.supervisor.limits import Limits, backoff
from bireme_worker.supervisor.progress import RankProgress, Verdict, judge
from bireme_worker.supervisor.stage import RankPhase

LIMITS = Limits()


def _rank(phase: RankPhase, now: float = 0.0) -> RankProgress:
    rank = RankProgress.started(now)
    rank.enter(phase, now)
    return rank


def _verdict(rank: RankProgress, now: float) -> Verdict:
    return judge(rank, LIMITS, now)[0]


def _busy(step: int, layers: int) -> RankBeat:
    return RankBeat(0, True, "Serving", 5, step, layers, busy=True)


def test_an_idle_rank_that_beats_is_fine_for_days() -> None:
    rank = _rank(RankPhase.SERVING)
    for quarter in range(100_000):
        rank.hear(RankBeat(0, True, "Serving", 5, 7, 70, busy=False), quarter * 0.25)
    assert _verdict(rank, 25_000.0) is Verdict.FINE


def test_a_silent_rank_is_unready_first_and_killed_later() -> None:
    rank = _rank(RankPhase.SERVING)
    assert _verdict(rank, 2.4) is Verdict.FINE
    assert _verdict(rank, 2.6) is Verdict.SILENT
    assert _verdict(rank, 5.1) is Verdict.KILL


def test_a_long_prefill_is_progress_while_layers_grow() -> None:
    rank = _rank(RankPhase.SERVING)
    for second in range(60):
        rank.hear(_busy(3, second // 7), float(second))
        assert _verdict(rank, float(second)) is Verdict.FINE


def test_work_without_a_step_or_layer_is_stuck() -> None:
    rank = _rank(RankPhase.SERVING)
    rank.hear(RankBeat(0, True, "Serving", 5, 3, 9, busy=False), 0.0)
    for quarter in range(400, 440):
        rank.hear(_busy(3, 9), quarter * 0.25)
        assert _verdict(rank, quarter * 0.25) is (Verdict.STUCK if quarter * 0.25 > 108.0 else Verdict.FINE)


def test_time_before_the_work_came_is_not_charged() -> None:
    rank = _rank(RankPhase.SERVING)
    rank.hear(RankBeat(0, True, "Serving", 5, 3, 9, busy=False), 99.9)
    rank.hear(_busy(3, 9), 100.0)
    assert rank.step_age(101.0) == 1.0


def test_a_rank_that_loads_may_hold_its_breath_but_not_for_ever() -> None:
    rank = _rank(RankPhase.LOADING)
    assert _verdict(rank, 59.0) is Verdict.FINE
    assert _verdict(rank, 61.0) is Verdict.KILL
    beating = _rank(RankPhase.LOADING)
    beating.hear(RankBeat(0, True, "Loading"), 600.5)
    assert _verdict(beating, 599.0) is Verdict.FINE
    assert _verdict(beating, 600.6) is Verdict.KILL


def test_a_rank_that_does_not_leave_its_epoch_is_killed_unless_it_still_computes() -> None:
    rank = _rank(RankPhase.ENDING)
    rank.hear(RankBeat(0, True, "Ending", 5, 3, 9, busy=False), 5.0)
    rank.hear(RankBeat(0, True, "Ending", 5, 3, 9, busy=False), 5.2)
    assert _verdict(rank, 5.3) is Verdict.FINE
    rank.hear(RankBeat(0, True, "Ending", 5, 3, 9, busy=False), 10.2)
    assert _verdict(rank, 10.3) is Verdict.KILL


def test_a_supervisor_that_was_stopped_itself_charges_nobody() -> None:
    clock = WatchedClock(100.0)
    rank = RankProgress.started(clock.time())
    rank.enter(RankPhase.SERVING, clock.time())
    clock.tick(100.1)
    clock.tick(160.0)
    assert clock.time() < 0.5
    assert _verdict(rank, clock.time()) is Verdict.FINE
    for tenth in range(30):
        clock.tick(160.1 + tenth * 0.1)
    assert _verdict(rank, clock.time()) is Verdict.SILENT


def test_the_first_retry_is_immediate_and_later_ones_wait_longer() -> None:
    assert [backoff(n) for n in range(5)] == [0.0, 0.0, 0.1, 0.2, 0.4]
    assert backoff(1000) == 5.0
