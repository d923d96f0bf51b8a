"""Stages that their group has not heard for long: their nodes are left after a while, unless it is most of them."""

import pytest

from bireme.wire.state import StageState
from bireme_operator.plan.memory import GroupMemory
from bireme_operator.plan.observed import LeaderView, Leave, Observed, Phase, PodView
from bireme_operator.shell.isolation import SHUNNED_S, Isolation
from tests.planner.world import document

KEY = ("default", "demo")
NOW = 1_800_000_000.0
WHY = Leave("its group has not heard it for 120 s and more", patient=True)


def stage(number: int) -> PodView:
    return PodView(f"p{number}", 0, number, 1, "r", "m", Phase.RUNNING, "10.0.0.1", started_at=NOW, node=f"n{number}")


class Sky:
    """A clock that the test moves, and a group of four stages that served, each on a node of its own."""

    def __init__(self, after_s: float = 120.0) -> None:
        self.now = NOW
        self.isolation = Isolation(lambda: self.now, after_s)
        self.stages = [stage(number) for number in range(4)]

    def hear(self, *unheard: int) -> None:
        said = tuple(StageState(one.stage, 1, "b", 9.0 * (one.stage in unheard), ()) for one in self.stages)
        leader = LeaderView("p0", document(self.stages[0], stages=said), self.now)
        observed = Observed(tuple(self.stages), {0: leader})
        self.isolation.listen(
            KEY, observed, {0: GroupMemory(0, NOW, None, epoch=1)}, {f"n{number}" for number in unheard}
        )

    @property
    def leaving(self) -> dict[str, Leave]:
        found = {one.name: self.isolation.leave(KEY, one) for one in self.stages}
        return {name: leave for name, leave in found.items() if leave is not None}


def test_a_stage_is_had_elsewhere_when_it_was_not_heard_for_long_and_no_more_when_it_is() -> None:
    sky = Sky()
    sky.hear(2)
    assert [*sky.isolation.dues(KEY)] == [NOW + 120]
    sky.now += 119
    sky.hear(2)
    assert (sky.leaving, sky.isolation.shunned) == ({}, frozenset())
    sky.now += 1
    sky.hear(2)
    assert (sky.leaving, [*sky.isolation.dues(KEY)]) == ({"p2": WHY}, [])
    assert sky.isolation.shunned == {"n2"}
    sky.hear()
    assert (sky.leaving, sky.isolation.shunned) == ({}, frozenset())
    sky.hear(2)
    assert sky.leaving == {}, "it begins anew"


def test_a_node_that_was_left_gets_no_new_pod_for_a_while() -> None:
    sky = Sky()
    sky.hear(2)
    sky.now += 120
    sky.hear(2)
    sky.stages[2] = PodView("p9", 0, 2, 2, "r", "m", Phase.RUNNING, "10.0.0.9", started_at=sky.now, node="n9")
    sky.hear()
    assert not sky.leaving
    assert sky.isolation.shunned == {"n2"}
    sky.now += SHUNNED_S
    assert sky.isolation.shunned == frozenset()


@pytest.mark.parametrize(("unheard", "leaves"), [((1,), True), ((1, 2), True), ((1, 2, 3), False)])
def test_while_most_nodes_are_not_heard_nobody_is_asked_to_leave(unheard: tuple[int, ...], leaves: bool) -> None:
    sky = Sky()
    sky.hear(*unheard)
    sky.now += 1000
    sky.hear(*unheard)
    assert bool(sky.leaving) is bool(sky.isolation.shunned) is leaves


def test_zero_seconds_mean_never() -> None:
    sky = Sky(after_s=0.0)
    sky.hear(2)
    sky.now += 1000
    sky.hear(2)
    assert (sky.leaving, [*sky.isolation.dues(KEY)]) == ({}, [])


def test_who_is_no_more_is_forgotten() -> None:
    sky = Sky()
    sky.hear(2)
    sky.isolation.forget(KEY)
    sky.now += 1000
    assert (sky.leaving, sky.isolation.misses(KEY)) == ({}, False)
