"""Kubelets that are silent for long: their nodes are left after a while, unless it is most of them."""

from datetime import UTC, datetime
from typing import Any

import pytest

from bireme_operator.plan.observed import Leave
from bireme_operator.shell.silence import Silence
from bireme_operator.shell.store import Store
from tests.operator.test_leaving import ALL
from tests.operator.test_records import KEY, pod

NOW = 1_800_000_000.0
WHY = Leave("its kubelet has been silent for 120 s and more", patient=True)


class Sky:
    """A clock that the test moves, a store of four nodes that are heard, and a pod on the first."""

    def __init__(self, after_s: float = 120.0) -> None:
        self.now = NOW
        self.store = Store(lambda: self.now, silence=Silence(lambda: self.now, after_s))
        self.store.see_pod(pod(1))
        for number in range(1, 5):
            self.see(number)

    def see(self, number: int, ready: str = "True", since: float | None = None, *, cordoned: bool = False) -> list[Any]:
        condition: dict[str, str] = {"type": "Ready", "status": ready}
        if since is not None:
            condition["lastTransitionTime"] = datetime.fromtimestamp(since, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        spec = {"unschedulable": cordoned}
        node = {"metadata": {"name": f"n{number}"}, "spec": spec, "status": {"conditions": [condition]}}
        return [*self.store.see_node(node)]

    @property
    def leaving(self) -> list[Leave]:
        return [*self.store.leaving(KEY, "owner").values()]


def test_a_node_is_left_when_its_kubelet_has_been_silent_for_long_and_no_more_when_it_is_heard() -> None:
    sky = Sky()
    assert sky.see(1, "Unknown") == [KEY]
    assert sky.see(1, "Unknown") == []
    assert sky.leaving == []
    assert sky.store.leave_due(KEY, "owner") == NOW + 120
    sky.now += 120
    assert sky.leaving == [WHY]
    assert sky.store.leave_due(KEY, "owner") is None
    assert sky.see(1) == [KEY]
    assert sky.leaving == []
    assert sky.see(2, "Unknown") == [], "none of its pods is there"


def test_an_operator_that_has_just_begun_knows_by_the_node_how_long_it_has_been_silent() -> None:
    sky = Sky()
    sky.see(1, "Unknown", since=NOW - 119)
    assert sky.store.leave_due(KEY, "owner") == NOW + 1
    sky.now += 1
    assert sky.leaving == [WHY]


def test_a_clock_that_is_late_makes_nobody_wait_longer() -> None:
    sky = Sky()
    sky.see(1, "Unknown", since=NOW + 1000)
    assert sky.store.leave_due(KEY, "owner") == NOW + 120


@pytest.mark.parametrize(
    ("silent", "leaves"), [((1,), True), ((1, 2), True), ((1, 2, 3), False), ((1, 2, 3, 4), False)]
)
def test_while_most_nodes_are_silent_nobody_is_asked_to_leave(silent: tuple[int, ...], leaves: bool) -> None:
    sky = Sky()
    for number in silent:
        sky.see(number, "Unknown")
    sky.now += 1000
    assert bool(sky.leaving) is leaves
    for number in silent[1:]:
        sky.see(number)
    assert sky.leaving == [WHY]


def test_a_node_that_is_not_ready_by_its_own_word_is_not_silent() -> None:
    sky = Sky()
    assert sky.see(1, "False") == []
    sky.now += 1000
    assert sky.leaving == []


def test_zero_seconds_mean_never() -> None:
    sky = Sky(after_s=0.0)
    sky.see(1, "Unknown")
    sky.now += 1000
    assert sky.leaving == []
    assert sky.store.leave_due(KEY, "owner") is None


def test_a_cordon_says_it_louder() -> None:
    sky = Sky()
    sky.see(1, "Unknown", cordoned=True)
    sky.now += 1000
    assert sky.leaving == [Leave()]


def test_new_pods_that_bear_every_taint_are_kept_off_a_silent_node() -> None:
    sky = Sky()
    sky.see(2, "Unknown")
    assert sky.store.lures(KEY, []) == frozenset()
    assert sky.store.lures(KEY, ALL) == {"n2"}
