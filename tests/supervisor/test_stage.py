"""A stage between leader and ranks: what it tells upwards, what it sends down, whom it ends."""

from typing import Any

from bireme.wire.control import (
    Address,
    Checkpoint,
    ControlMessage,
    End,
    Ended,
    Failed,
    Form,
    Formed,
    Load,
    Loaded,
    Lost,
)
from bireme_worker.supervisor.stage import Action, Fatal, Kill, RankPhase, Stage, ToLeader, ToRank

CHECKPOINT = Checkpoint("/models/m", "1")
PLAN = Address("127.0.0.1", 8003)


def _form(epoch: int) -> Form:
    return Form(epoch, ((PLAN, PLAN),), PLAN, 10)


def _up(actions: list[Action]) -> list[ControlMessage]:
    return [action.message for action in actions if isinstance(action, ToLeader)]


def _down(actions: list[Action]) -> list[tuple[int, Any]]:
    return [(action.rank, action.message) for action in actions if isinstance(action, ToRank)]


def _loaded() -> Stage:
    stage = Stage(2, CHECKPOINT, 0)
    stage.connect()
    stage.leader_said(Load(CHECKPOINT))
    for rank in (0, 1):
        stage.rank_up(rank)
        stage.rank_said(rank, Loaded(CHECKPOINT, 10 + rank, rank))
    return stage


def _serving() -> Stage:
    stage = _loaded()
    stage.leader_said(_form(5))
    for rank in (0, 1):
        stage.rank_said(rank, Formed(5, rank))
    assert stage.serving == 5
    return stage


def test_a_rank_is_told_to_load_as_soon_as_it_lives() -> None:
    stage = Stage(2, CHECKPOINT, 0)
    assert _down(stage.rank_up(1)) == [(1, Load(CHECKPOINT))]


def test_loaded_is_told_once_when_the_last_rank_has_loaded_and_the_leader_has_asked() -> None:
    stage = Stage(2, CHECKPOINT, 0)
    for rank in (0, 1):
        stage.rank_up(rank)
        assert _up(stage.rank_said(rank, Loaded(CHECKPOINT, 10 + rank, rank))) == []
    assert _up(stage.connect()) == []
    assert _up(stage.leader_said(Load(CHECKPOINT))) == [Loaded(CHECKPOINT, 10)]
    assert _up(stage.rank_heard(0)) == []
    assert [seat.loads for seat in stage.ranks] == [1, 1]


def test_another_checkpoint_is_loaded_by_every_rank() -> None:
    stage = _loaded()
    other = Checkpoint("/models/m2", "2", 1)
    assert _down(stage.leader_said(Load(other))) == [(0, Load(other)), (1, Load(other))]
    assert not stage.loaded


def test_formed_is_told_when_all_ranks_have_formed() -> None:
    stage = _loaded()
    assert [rank for rank, _ in _down(stage.leader_said(_form(5)))] == [0, 1]
    assert _up(stage.rank_said(0, Formed(5, 0))) == []
    assert _up(stage.rank_said(1, Formed(5, 1))) == [Formed(5)]


def test_the_end_of_a_rank_is_told_at_once_and_ends_the_epoch_for_the_others() -> None:
    stage = _serving()
    actions = stage.rank_down(1, "RankLost", "rank 1 was ended by SIGKILL")
    assert _up(actions) == [Lost(5, "RankLost", "rank 1 was ended by SIGKILL")]
    assert _down(actions) == [(0, End(5, "RankLost"))]
    assert stage.serving == 0
    assert _up(stage.rank_said(0, Ended(5, 0))) == []
    assert _up(stage.leader_said(End(5, "RankLost"))) == [Ended(5)]
    stage.rank_up(1)
    assert _up(stage.rank_said(1, Loaded(CHECKPOINT, 11, 1))) == [Loaded(CHECKPOINT, 10)]
    assert [seat.loads for seat in stage.ranks] == [1, 2]


def test_ended_is_told_when_the_last_rank_has_left() -> None:
    stage = _serving()
    assert _up(stage.leader_said(End(5, "StageLost"))) == []
    assert _up(stage.rank_said(0, Ended(5, 0))) == []
    assert _up(stage.rank_said(1, Ended(5, 1))) == [Ended(5)]


def test_a_form_waits_until_every_rank_is_idle() -> None:
    stage = _serving()
    stage.leader_said(End(5, "StageLost"))
    assert _down(stage.leader_said(_form(6))) == []
    stage.rank_said(0, Ended(5, 0))
    assert [type(m) for _, m in _down(stage.rank_said(1, Ended(5, 1)))] == [Form, Form]


def test_a_form_that_was_ended_before_it_began_never_begins() -> None:
    stage = _serving()
    stage.rank_down(1, "RankLost", "")
    stage.leader_said(_form(6))
    assert _up(stage.leader_said(End(6, "RankLost"))) == []
    assert _up(stage.rank_said(0, Ended(5, 0))) == [Ended(6)]
    stage.rank_up(1)
    assert _down(stage.rank_said(1, Loaded(CHECKPOINT, 9, 1))) == []


def test_an_old_form_is_dropped() -> None:
    stage = _serving()
    stage.leader_said(End(5, "StageLost"))
    for rank in (0, 1):
        stage.rank_said(rank, Ended(5, rank))
    assert stage.leader_said(_form(5)) == []


def test_the_loss_of_the_leader_ends_the_epoch_here() -> None:
    stage = _serving()
    actions = stage.disconnect()
    assert _down(actions) == [(0, End(5, "LeaderLost")), (1, End(5, "LeaderLost"))]
    for rank in (0, 1):
        stage.rank_said(rank, Ended(5, rank))
    stage.connect()
    assert _up(stage.leader_said(Load(CHECKPOINT))) == [Loaded(CHECKPOINT, 10)], "the weights were kept"


def test_a_silent_rank_is_unready_and_comes_back_with_its_weights() -> None:
    stage = _serving()
    actions = stage.rank_silent(1, "rank 1: no beat for 2.6 s")
    assert _up(actions) == [Lost(5, "Hung", "rank 1: no beat for 2.6 s")]
    assert stage.serving == 0
    assert _up(stage.rank_silent(1, "again")) == []
    stage.leader_said(End(5, "Hung"))
    stage.rank_said(0, Ended(5, 0))
    assert _up(stage.rank_heard(1)) == []
    assert _up(stage.rank_said(1, Ended(5, 1))) == [Ended(5), Loaded(CHECKPOINT, 10)]
    assert [seat.loads for seat in stage.ranks] == [1, 1]


def test_a_stuck_rank_ends_the_epoch_without_being_killed_yet() -> None:
    stage = _serving()
    actions = stage.rank_stuck(0, "busy, no progress")
    assert _up(actions) == [Lost(5, "Hung", "busy, no progress")]
    assert [rank for rank, _ in _down(actions)] == [0, 1]
    assert stage.rank_stuck(0, "still") == []


def test_a_rank_that_reports_a_broken_epoch_lives_on() -> None:
    stage = _serving()
    actions = stage.rank_said(0, Failed("DeviceError", "NaN in every logit", 0, 0, 5))
    assert _up(actions) == [Lost(5, "DeviceError", "rank 0: NaN in every logit")]
    assert not any(isinstance(action, Kill) for action in actions)
    assert stage.rank_said(0, Failed("DeviceError", "late", 0, 0, 4)) == []


def test_a_final_failure_ends_the_pod_with_its_code() -> None:
    stage = Stage(1, CHECKPOINT, 0)
    stage.rank_up(0)
    actions = stage.rank_said(0, Failed("BadCheckpoint", "model.safetensors is 5 bytes", 65))
    assert actions == [Fatal(65, "BadCheckpoint", "rank 0: model.safetensors is 5 bytes")]


def test_a_rank_with_a_fault_of_its_own_is_ended_and_reported_by_its_reason() -> None:
    stage = _serving()
    [kill] = stage.rank_said(1, Failed("DeviceError", "CUDA error 700", 70, 1, 5))
    assert kill == Kill(1, "DeviceError", "CUDA error 700")
    assert stage.serving == 5, "its end is reported when it has ended"


def test_a_load_that_failed_for_now_costs_the_process_only() -> None:
    stage = Stage(1, CHECKPOINT, 0)
    stage.rank_up(0)
    assert stage.rank_said(0, Failed("DeviceError", "out of memory")) == [Kill(0, "DeviceError", "out of memory")]
    assert stage.ranks[0].phase is RankPhase.LOADING


def test_a_broken_connection_to_a_peer_ends_the_epoch_as_somebody_elses_fault() -> None:
    stage = _serving()
    actions = stage.rank_said(0, Lost(5, "RankLost", "stage 1 rank 0 closed"))
    assert _up(actions) == [Lost(5, "RankLost", "rank 0: stage 1 rank 0 closed", collateral=True)]
    assert stage.rank_said(1, Lost(5, "RankLost", "late")) == []
