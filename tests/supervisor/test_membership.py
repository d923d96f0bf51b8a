"""The leader's machine, case by case: who is let in, when an epoch begins, what ends it, what the status says."""

from typing import Any

from bireme.wire.control import (
    EPOCH_SHIFT,
    Address,
    Checkpoint,
    End,
    Ended,
    Form,
    Formed,
    Hello,
    Leaving,
    Load,
    Loaded,
    Lost,
    Standing,
    Superseded,
    Welcome,
)
from bireme_worker.coordinator.messages import Begin, Begun, Drain, Finish, PlanLost, Serve, Status, Undrain
from bireme_worker.supervisor import events as ev
from bireme_worker.supervisor.limits import Limits
from bireme_worker.supervisor.membership import Group, Membership

CHECKPOINT = Checkpoint("/models/m", "1")
PLAN = Address("127.0.0.1", 8003)
FIRST = (1 << EPOCH_SHIFT) + 1


def _group(stages: int = 2) -> Group:
    return Group("g", stages, 1, 1, PLAN, CHECKPOINT)


class Driver:
    """Feeds a machine and keeps what it wanted last. Connection n + 1 is stage n's first one."""

    def __init__(self, stages: int = 2, last_epoch: int = 0) -> None:
        self.machine = Membership(_group(stages), Limits(), last_epoch, 0.0)
        self.now = 0.0
        self.out: list[ev.Effect] = []

    def __call__(self, *events: ev.Event) -> list[ev.Effect]:
        self.out = [effect for event in events for effect in self.machine.handle(event, self.now)]
        return self.out

    def sent(self, kind: type) -> list[tuple[int, Any]]:
        return [(e.connection, e.message) for e in self.out if isinstance(e, ev.Send) and isinstance(e.message, kind)]

    def told(self, kind: type) -> list[Any]:
        return [e.message for e in self.out if isinstance(e, ev.ToCoordinator) and isinstance(e.message, kind)]

    def join(self, stage: int, connection: int, incarnation: int = 1, **changes: Any) -> None:
        data = changes.pop("data", (Address(f"127.0.0.{stage + 2}", 8010),))
        fields = {"group": "g", "last_epoch": 0, **changes}
        self(ev.Joined(connection, Hello(stage=stage, incarnation=incarnation, boot="b", data=data, **fields)))

    def form(self) -> None:
        self(ev.CoordinatorUp(), ev.FrontChanged(up=True))
        for stage, _ in enumerate(self.machine.seats):
            self.join(stage, stage + 1)
            self(ev.Said(stage + 1, Loaded(CHECKPOINT, 100 - stage)))

    def serve(self) -> None:
        self.form()
        epoch = self.machine.epoch
        for stage, _ in enumerate(self.machine.seats):
            self(ev.Said(stage + 1, Formed(epoch)))
        self(ev.CoordinatorSaid(Begun(epoch)))

    @property
    def state(self) -> tuple[str, str]:
        standing = self.machine.standing
        return standing.state, standing.reason


def test_a_stage_that_joins_is_welcomed_and_told_what_to_load() -> None:
    drive = Driver()
    drive.join(1, 7)
    assert drive.sent(Welcome) == [(7, Welcome(1, 1, CHECKPOINT))]
    assert drive.sent(Load) == [(7, Load(CHECKPOINT))]
    assert drive.state == ("Starting", "Loading")


def test_an_epoch_is_recorded_then_begun_then_formed_with_the_smallest_kv_block_count() -> None:
    drive = Driver()
    drive.form()
    addresses = ((Address("127.0.0.2", 8010),), (Address("127.0.0.3", 8010),))
    form = Form(FIRST, addresses, PLAN, 99)
    assert drive.out[:4] == [
        ev.Record(FIRST),
        ev.ToCoordinator(Begin(FIRST, 99, "1", 0, "/models/m")),
        ev.Send(1, form),
        ev.Send(2, form),
    ]
    assert drive.state == ("Starting", "Warming")


def test_nothing_is_formed_without_the_coordinator() -> None:
    drive = Driver()
    for stage in (0, 1):
        drive.join(stage, stage + 1)
        drive(ev.Said(stage + 1, Loaded(CHECKPOINT, 5)))
    assert drive.machine.epoch == 0
    drive(ev.CoordinatorUp())
    assert drive.machine.epoch == FIRST


def test_it_serves_only_when_all_have_formed_and_the_coordinator_has_begun() -> None:
    drive = Driver()
    drive.form()
    drive(ev.Said(1, Formed(FIRST)), ev.CoordinatorSaid(Begun(FIRST)))
    assert drive.told(Serve) == []
    drive(ev.Said(2, Formed(FIRST)))
    assert drive.told(Serve) == [Serve(FIRST)]
    assert drive.state == ("Serving", "None")
    assert {c for c, m in drive.sent(Standing) if m.state == "Serving"} == {1, 2}


def test_words_of_another_epoch_count_for_nothing() -> None:
    drive = Driver()
    drive.form()
    drive(ev.Said(1, Formed(FIRST - 1)), ev.Said(2, Formed(FIRST)), ev.CoordinatorSaid(Begun(FIRST - 1)))
    drive(ev.CoordinatorSaid(Begun(FIRST)))
    assert drive.told(Serve) == []


def test_a_lost_rank_ends_the_epoch_for_every_stage_at_once() -> None:
    drive = Driver()
    drive.serve()
    drive(ev.Said(2, Lost(FIRST, "RankLost", "rank 0 was ended by SIGKILL")))
    assert drive.sent(End) == [(1, End(FIRST, "RankLost")), (2, End(FIRST, "RankLost"))]
    [finish] = drive.told(Finish)
    assert (finish.epoch, finish.reason, finish.retry_after_s) == (FIRST, "RankLost", 1.0)
    assert drive.state == ("Recovering", "RankLost")
    assert "SIGKILL" in drive.machine.standing.message
    assert "waits for stage 1 to load" in drive.machine.standing.message


def test_the_next_epoch_waits_until_all_have_left_the_last_one_and_the_lost_stage_is_loaded() -> None:
    drive = Driver()
    drive.serve()
    drive(ev.Said(2, Lost(FIRST, "RankLost", "")), ev.Said(2, Ended(FIRST)), ev.Said(2, Loaded(CHECKPOINT, 9)))
    assert drive.sent(Form) == []
    drive(ev.Said(1, Ended(FIRST)))
    assert [m.epoch for _, m in drive.sent(Form)] == [FIRST + 1, FIRST + 1]
    drive.serve()

    drive = Driver()
    drive.serve()
    drive(ev.Said(2, Lost(FIRST, "RankLost", "")), ev.Said(2, Ended(FIRST)), ev.Said(1, Ended(FIRST)))
    assert drive.sent(Form) == [], "stage 1 has not loaded its new rank yet"


def test_a_lost_connection_is_a_lost_stage_and_says_more_than_the_rank_that_went_first() -> None:
    drive = Driver()
    drive.serve()
    drive(ev.CoordinatorSaid(PlanLost(FIRST, 1, 0)))
    assert drive.state == ("Recovering", "RankLost")
    drive(ev.Left(2, "the peer closed the connection"))
    assert drive.state == ("Recovering", "StageLost")
    assert drive.machine.ended == {"RankLost": 1}


def test_the_lost_rank_is_named_although_its_peers_noticed_first() -> None:
    drive = Driver()
    drive.serve()
    drive(ev.Said(1, Lost(FIRST, "RankLost", "rank 0: a peer closed", collateral=True)))
    drive(ev.Said(2, Lost(FIRST, "RankLost", "rank 0: was ended by SIGKILL")))
    drive(ev.Said(1, Lost(FIRST, "RankLost", "rank 0: another peer closed", collateral=True)))
    assert drive.machine.standing.message.startswith("stage 1: rank 0: was ended by SIGKILL")


def test_two_stages_lost_at_once_are_both_waited_for() -> None:
    drive = Driver(stages=3)
    drive.serve()
    drive(ev.Left(2, "gone"), ev.Left(3, "gone"), ev.Said(1, Ended(FIRST)))
    assert "stage 1 to join, stage 2 to join" in drive.machine.standing.message
    for stage, connection in ((1, 8), (2, 9)):
        drive.join(stage, connection, last_epoch=FIRST)
        drive(ev.Said(connection, Loaded(CHECKPOINT, 50)))
    assert drive.machine.epoch == FIRST + 1


def test_a_higher_incarnation_takes_the_seat_and_the_lower_one_is_told() -> None:
    drive = Driver()
    drive.serve()
    drive.join(1, 9, incarnation=2)
    assert drive.sent(Superseded) == [(2, Superseded(2))]
    assert [e.connection for e in drive.out if isinstance(e, ev.Drop)] == [2]
    assert drive.machine.seats[1].incarnation == 2
    assert drive.state == ("Recovering", "StageLost")


def test_a_lower_incarnation_is_turned_away_also_when_the_higher_one_is_gone() -> None:
    drive = Driver()
    drive.join(1, 2, incarnation=3)
    drive(ev.Left(2, "gone"))
    drive.join(1, 5, incarnation=2)
    assert drive.sent(Superseded) == [(5, Superseded(3))]
    assert drive.sent(Welcome) == []


def test_strangers_are_turned_away_with_a_reason() -> None:
    drive = Driver()
    drive.serve()
    drive.join(1, 11, group="other")
    drive.join(7, 12)
    drive.join(0, 13)
    drive.join(1, 14, data=())
    [drop] = drive.out
    assert isinstance(drop, ev.Drop)
    assert "0 ranks" in drop.message
    assert drive.state == ("Serving", "None")


def test_words_of_a_replaced_connection_are_ignored() -> None:
    drive = Driver()
    drive.serve()
    drive.join(1, 9)
    drive(ev.Said(2, Lost(FIRST, "Hung", "late")), ev.Left(2, "late"))
    assert drive.machine.seats[1].connection == 9
    assert drive.state == ("Recovering", "StageLost")


def test_a_restarted_leader_is_recovering_and_opens_a_higher_epoch() -> None:
    drive = Driver(last_epoch=FIRST)
    assert drive.state == ("Recovering", "LeaderLost")
    drive.serve()
    assert drive.machine.epoch == FIRST + 1


def test_a_leader_without_its_file_learns_the_last_epoch_from_its_stages() -> None:
    drive = Driver()
    drive.join(1, 2, last_epoch=FIRST + 7)
    assert drive.state == ("Recovering", "LeaderLost")
    drive.form()
    assert drive.machine.epoch == FIRST + 8


def test_a_lost_coordinator_ends_the_epoch() -> None:
    drive = Driver()
    drive.serve()
    drive(ev.CoordinatorDown("the coordinator was ended by SIGKILL"))
    assert drive.state == ("Recovering", "LeaderLost")
    drive(ev.Said(1, Ended(FIRST)), ev.Said(2, Ended(FIRST)))
    assert drive.machine.epoch == 0
    drive(ev.CoordinatorUp())
    assert drive.machine.epoch == FIRST + 1


def test_without_an_http_process_the_group_is_not_serving_but_keeps_its_epoch() -> None:
    drive = Driver()
    drive.serve()
    drive(ev.FrontChanged(up=False, message="HTTP process 0 was ended by SIGKILL"))
    assert drive.state == ("Recovering", "LeaderLost")
    assert "HTTP process 0" in drive.machine.standing.message
    drive(ev.FrontChanged(up=True))
    assert drive.state == ("Serving", "None")
    assert drive.machine.epoch == FIRST


def test_an_epoch_that_does_not_form_in_time_is_ended_and_says_who_was_missing() -> None:
    drive = Driver()
    drive.form()
    drive(ev.Said(1, Formed(FIRST)))
    drive.now = 61.0
    drive(ev.Tick())
    assert [c for c, _ in drive.sent(End)] == [1, 2]
    assert "stage 1 to form" in drive.machine.standing.message


def test_a_stage_that_does_not_leave_its_epoch_is_disconnected() -> None:
    drive = Driver()
    drive.serve()
    drive(ev.Said(1, Lost(FIRST, "RankLost", "")), ev.Said(1, Ended(FIRST)))
    drive.now = 21.0
    drive(ev.Tick())
    assert [e.connection for e in drive.out if isinstance(e, ev.Drop)] == [2]


def test_a_stage_that_stays_away_beyond_the_limit_ends_the_leader_with_75() -> None:
    drive = Driver()
    drive.serve()
    drive(ev.Left(2, "gone"))
    drive.now = 1801.0
    assert ev.GiveUp(75, "StageLost", "stage 1 stayed away for more than 1800 s") in drive(ev.Tick())


def test_an_idle_group_is_healthy_for_days() -> None:
    drive = Driver()
    drive.serve()
    for hour in range(100):
        drive.now = hour * 3600.0
        assert drive(ev.Tick()) == []
    assert drive.state == ("Serving", "None")


def _status(running: int, *, draining: bool = True) -> ev.CoordinatorSaid:
    return ev.CoordinatorSaid(Status(FIRST, running, 0, 0, 0, 0, 0, 0.0, draining, 0, 0, 0, {}))


def test_a_drain_refuses_work_until_undrained_and_is_over_when_nothing_runs() -> None:
    drive = Driver()
    drive.serve()
    drive(_status(1, draining=False), ev.DrainAsked(30.0))
    assert drive.told(Drain) == [Drain(30.0)]
    assert drive.state == ("Draining", "DrainRequested")
    assert not drive.machine.drained
    drive(_status(1))
    assert not drive.machine.drained
    drive(_status(0))
    assert drive.machine.drained
    drive(ev.UndrainAsked())
    assert drive.told(Undrain) == [Undrain()]
    assert drive.state == ("Serving", "None")


def test_a_leaving_stage_is_let_go_when_nothing_runs_and_its_successor_ends_the_drain() -> None:
    drive = Driver()
    drive.serve()
    drive(_status(1, draining=False), ev.Said(2, Leaving(30.0)))
    assert drive.state == ("Draining", "DrainRequested")
    assert drive.sent(End) == []
    drive(_status(0))
    assert drive.sent(End) == [(1, End(FIRST, "DrainRequested")), (2, End(FIRST, "DrainRequested"))]
    drive(ev.Said(1, Ended(FIRST)), ev.Said(2, Ended(FIRST)))
    assert drive.sent(Form) == []
    drive(ev.Left(2, "gone"))
    assert drive.told(Undrain) == [Undrain()]
    drive.join(1, 5, incarnation=2)
    drive(ev.Said(5, Loaded(CHECKPOINT, 5)))
    assert drive.machine.epoch == FIRST + 1


def test_a_leaving_stage_is_let_go_at_the_deadline_even_if_something_runs() -> None:
    drive = Driver()
    drive.serve()
    drive(_status(1), ev.Said(2, Leaving(10.0)))
    drive.now = 16.0
    drive(ev.Tick())
    assert [c for c, _ in drive.sent(End)] == [1, 2]


def test_a_coordinator_that_returns_during_a_drain_is_told_the_rest_of_the_deadline() -> None:
    drive = Driver()
    drive.serve()
    drive(ev.DrainAsked(30.0))
    drive.now = 10.0
    drive(ev.CoordinatorDown("gone"), ev.CoordinatorUp())
    assert drive.told(Drain) == [Drain(20.0)]


def test_a_replaced_leader_ends_its_epoch_and_never_serves_again() -> None:
    drive = Driver()
    drive.serve()
    drive(ev.Replaced(2))
    assert drive.state == ("Failed", "Superseded")
    drive(ev.Said(1, Ended(FIRST)), ev.Said(2, Ended(FIRST)))
    assert drive.machine.epoch == 0


def test_what_went_wrong_during_a_start_is_in_the_message() -> None:
    drive = Driver()
    drive.form()
    drive(ev.Said(2, Lost(0, "RankLost", "rank 0: exited with 1: MemoryError")))
    assert drive.state[0] == "Starting"
    assert "MemoryError" in drive.machine.standing.message
