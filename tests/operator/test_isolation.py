"""Stages that their group has not heard for long: their nodes are left after a while, unless it is most of them."""

from dataclasses import replace

import pytest

from bireme.wire.state import RankState, StageState
from bireme_operator.plan.memory import GroupMemory
from bireme_operator.plan.observed import LeaderView, Leave, Observed, Phase, PodView
from bireme_operator.shell.isolation import SHUNNED_S, Isolation
from tests.planner.world import document

KEY = ("default", "demo")
NOW = 1_800_000_000.0
WHY = Leave("its group has not heard it for 120 s and more", patient=True)
RANK = RankState(0, alive=True, pid=7, phase="Serving", step=1, step_age_s=0.0, loads=1)


def stage(number: int) -> PodView:
    return PodView(f"p{number}", 0, number, 1, "r", "m", Phase.RUNNING, "10.0.0.1", started_at=NOW, node=f"n{number}")


class Sky:
    """A clock that the test moves, and a group of five stages that served, each on a node of its own."""

    def __init__(self, after_s: float = 120.0, **group: object) -> None:
        self.now = NOW
        self.isolation = Isolation(lambda: self.now, after_s)
        self.stages = [stage(number) for number in range(5)]
        self.group = replace(GroupMemory(0, NOW, None, epoch=1), **group)  # type: ignore[arg-type]

    def hear(self, *unheard: int, leader: bool = True) -> None:
        """A second goes by, and these are not heard; without a ``leader`` nobody hears that either."""
        self.now += 1
        said = [StageState(one.stage, 1, "b", 9.0 * (one.stage in unheard), (RANK,)) for one in self.stages]
        heard = LeaderView("p0", document(self.stages[0], stages=tuple(said)), self.now, connected=leader)
        observed = Observed(tuple(self.stages), {0: heard})
        self.isolation.listen(KEY, observed, {0: self.group}, {f"n{number}" for number in unheard})

    def wait(self, *unheard: int) -> None:
        """The time after which a node is left."""
        self.now += self.isolation.after_s
        self.hear(*unheard)

    @property
    def leaving(self) -> dict[str, Leave]:
        found = {one.name: self.isolation.leave(KEY, one) for one in self.stages}
        return {name: leave for name, leave in found.items() if leave is not None}

    @property
    def shunned(self) -> frozenset[str]:
        return self.isolation.shunned(KEY)


def test_a_stage_is_had_elsewhere_when_it_was_not_heard_for_long_and_no_more_when_it_is() -> None:
    sky = Sky()
    sky.hear(2)
    assert [*sky.isolation.dues(KEY)] == [sky.now + 120]
    sky.now += 118
    sky.hear(2)
    assert not sky.leaving
    assert not sky.shunned
    sky.hear(2)
    assert sky.leaving == {"p2": WHY}
    assert not [*sky.isolation.dues(KEY)]
    assert sky.shunned == {"n2"}
    sky.hear()
    assert not sky.leaving
    assert not sky.shunned
    sky.hear(2)
    assert not sky.leaving, "it begins anew"


def test_a_leader_that_is_not_heard_for_a_moment_or_starts_again_takes_nothing_back() -> None:
    sky = Sky()
    sky.hear(2)
    sky.wait(2)
    sky.hear(2, leader=False)
    assert sky.leaving == {"p2": WHY}
    sky.stages[0] = replace(sky.stages[0], phase=Phase.BACKING_OFF)
    sky.hear(2)
    assert sky.leaving == {"p2": WHY}


def test_a_leader_that_was_missed_when_it_ended_is_no_second_node_that_is_not_heard() -> None:
    sky = Sky()
    sky.stages = sky.stages[:3]
    sky.hear(2)
    sky.wait(2)
    sky.hear(2, leader=False)
    sky.stages[0] = replace(sky.stages[0], phase=Phase.BACKING_OFF)
    sky.hear(2)
    assert sky.leaving == {"p2": WHY}


def test_an_operator_that_has_just_begun_goes_on_with_a_move_that_was_begun() -> None:
    sky = Sky(asked="is to leave n2")
    sky.hear(2)
    assert sky.leaving == {"p2": WHY}
    other = Sky(asked="is to leave n1")
    other.hear(2)
    assert not other.leaving, "for that node it was asked"


def test_a_node_that_was_left_gets_no_new_pod_for_a_while_and_one_that_comes_then_need_not_have_served() -> None:
    sky = Sky()
    sky.hear(2)
    sky.wait(2)
    sky.stages[2] = replace(sky.stages[2], name="p9", node="n9")
    sky.hear()
    assert not sky.leaving
    assert sky.shunned == {"n2"}
    sky.now += SHUNNED_S
    assert not sky.shunned
    sky.group = replace(sky.group, epoch=0)
    sky.stages[2] = replace(sky.stages[2], name="p10", node="n2")
    sky.stages[3] = replace(sky.stages[3], name="p11", node="n3")
    sky.hear(2, 3)
    sky.wait(2, 3)
    assert sky.leaving == {"p10": WHY}, "what the other lacks may be anything"


@pytest.mark.parametrize(("unheard", "leaves"), [((1,), True), ((1, 2), True), ((1, 2, 3), False)])
def test_while_most_nodes_are_not_heard_nobody_is_asked_to_leave(unheard: tuple[int, ...], leaves: bool) -> None:
    sky = Sky()
    sky.hear(*unheard)
    sky.wait(*unheard)
    assert bool(sky.leaving) is bool(sky.shunned) is leaves


def test_zero_seconds_mean_never() -> None:
    sky = Sky(after_s=0.0)
    sky.hear(2)
    sky.now += 1000
    sky.hear(2)
    assert not sky.leaving
    assert not [*sky.isolation.dues(KEY)]


def test_who_is_no_more_is_forgotten() -> None:
    sky = Sky()
    sky.hear(2)
    sky.isolation.forget(KEY)
    sky.now += 1000
    assert not sky.leaving
    assert not sky.isolation.misses(KEY)
