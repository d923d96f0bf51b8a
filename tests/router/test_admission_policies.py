"""Who waits, in which order, who is refused and for how long: each policy by itself."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bireme_router.policies.early_refusal import ENOUGH, Departures, in_vain
from bireme_router.policies.fair_queue import OLDEST_EVERY, FairQueue, Waiting
from bireme_router.policies.priority import Priority
from bireme_router.policies.rate_limit import Allowance, Rates
from bireme_router.policies.retry_after import LONGEST_S, UNKNOWN_S, retry_after_s


def entry(name: str, key: str = "a", priority: Priority = Priority.STANDARD, since: float = 0.0) -> Waiting[str]:
    return Waiting(name, key, priority, since)


def filled(*entries: Waiting[str]) -> FairQueue[str]:
    queue = FairQueue[str]()
    for one in entries:
        queue.push(one)
    return queue


def order(queue: FairQueue[str]) -> list[str]:
    return [one.item for one in queue.in_order()]


def test_a_better_class_goes_first_whatever_came_before() -> None:
    queue = filled(entry("b", priority=Priority.BATCH), entry("s"), entry("i", priority=Priority.INTERACTIVE))
    assert order(queue) == ["i", "s", "b"]


def test_within_a_class_the_key_that_got_less_goes_first() -> None:
    queue = filled(entry("a1"), entry("a2"), entry("b1", "b"))
    queue.charge("a", 500)
    assert order(queue) == ["b1", "a1", "a2"]
    queue.charge("b", 800)
    assert order(queue) == ["a1", "a2", "b1"]


def test_two_keys_get_the_same_tokens_however_many_requests_each_has() -> None:
    queue = filled(*(entry(f"a{n}") for n in range(100)), *(entry(f"b{n}", "b") for n in range(100)))
    got = {"a": 0, "b": 0}
    for _ in range(60):
        first = next(queue.in_order())
        tokens = 10 if first.key == "a" else 50
        queue.remove(first)
        queue.charge(first.key, tokens)
        got[first.key] += tokens
    assert abs(got["a"] - got["b"]) <= 50


def test_idle_time_is_no_credit() -> None:
    queue = filled(entry("a1"))
    queue.charge("a", 10_000)
    queue.push(entry("b1", "b"))
    queue.charge("b", 1)
    assert order(queue) == ["a1", "b1"]


def test_every_eighth_place_goes_to_whoever_waited_longest() -> None:
    queue = filled(entry("old", priority=Priority.BATCH, since=1.0))
    firsts = []
    for n in range(2 * OLDEST_EVERY):
        queue.push(entry(f"i{n}", priority=Priority.INTERACTIVE, since=10.0 + n))
        first = next(queue.in_order())
        firsts.append(first.item)
        queue.remove(first)
        queue.placed()
    assert firsts.index("old") == OLDEST_EVERY - 1


def test_a_full_room_gives_up_the_newest_of_the_longest_lower_line() -> None:
    batch = Priority.BATCH
    queue = filled(entry("x1", "x", batch), entry("y1", "y", batch), entry("y2", "y", batch), entry("s"))
    last = queue.last_below(Priority.STANDARD)
    assert last is not None
    assert last.item == "y2"
    assert queue.last_below(batch) is None
    assert filled(entry("s")).last_below(Priority.STANDARD) is None


def test_the_line_ahead_counts_better_classes_and_a_fair_share_of_each_other_key() -> None:
    queue = filled(
        entry("i", "c", Priority.INTERACTIVE), *(entry(f"a{n}") for n in range(50)), entry("b1", "b"), entry("b2", "b")
    )
    assert queue.ahead_of("new", Priority.STANDARD) == 1 + 1 + 1
    assert queue.ahead_of("b", Priority.STANDARD) == 1 + 2 + 3
    assert queue.ahead_of("c", Priority.INTERACTIVE) == 1
    assert queue.ahead_of("c", Priority.BATCH) == 53


PUSHES = st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(Priority), st.floats(0, 9)), max_size=30)


@given(PUSHES, st.data())
def test_nobody_is_lost_or_served_twice(pushes: list[tuple[str, Priority, float]], data: st.DataObject) -> None:
    queue = filled(*(entry(str(n), key, one, since) for n, (key, one, since) in enumerate(pushes)))
    served = []
    while len(queue):
        first = next(queue.in_order())
        queue.remove(first)
        queue.remove(first)
        queue.placed()
        queue.charge(first.key, data.draw(st.integers(0, 100)))
        served.append(first.item)
    assert sorted(served, key=int) == [str(n) for n in range(len(pushes))]
    assert not order(queue)


def test_the_wait_is_known_after_enough_places_and_follows_their_pace() -> None:
    pace = Departures()
    assert pace.wait_s(10) is None
    pace = pace.after(ENOUGH, 2.0)
    assert pace.wait_s(8) == pytest.approx(2.0)
    for _ in range(40):
        pace = pace.after(10, 1.0)
    assert pace.wait_s(10) == pytest.approx(1.0, rel=0.05)


def test_a_request_is_refused_early_only_when_its_wait_is_known_to_be_too_long() -> None:
    assert in_vain(61.0, 60.0)
    assert not in_vain(59.0, 60.0)
    assert not in_vain(None, 0.0)


def test_retry_after_is_the_shortest_promise_in_whole_seconds() -> None:
    assert retry_after_s([0.0, 2.1, 9.0]) == 3
    assert retry_after_s([0.0]) == UNKNOWN_S
    assert retry_after_s([1e9]) == LONGEST_S
    assert retry_after_s([], queue_s=12.2) == 13
    assert retry_after_s([30.0], queue_s=0.0) == 1


RATES = Rates(requests_per_minute=60, tokens_per_minute=600)


def test_a_key_may_use_a_minutes_worth_at_once_and_then_waits_its_rate() -> None:
    used = Allowance()
    for _ in range(60):
        assert used.wait_s(RATES, 10, 0.0) == 0.0
        used = used.used(RATES, 10, 0.0)
    assert used.wait_s(RATES, 1, 0.0) == pytest.approx(1.0)
    assert used.wait_s(RATES, 1, 1.001) == 0.0
    assert used.wait_s(Rates(), 10**9, 0.0) == 0.0


def test_tokens_are_settled_by_what_was_really_used() -> None:
    used = Allowance().used(RATES, 500, 0.0)
    assert used.wait_s(RATES, 200, 0.0) == pytest.approx(10.0)
    assert used.settled(-450).wait_s(RATES, 200, 0.0) == 0.0
    assert used.settled(700).wait_s(RATES, 200, 0.0) == pytest.approx(80.0)


def test_a_request_larger_than_the_rate_is_let_in_when_nothing_is_owed() -> None:
    assert Allowance().wait_s(RATES, 10_000, 0.0) == 0.0
    assert Allowance().used(RATES, 10_000, 0.0).wait_s(RATES, 1, 60.0) > 0.0


@given(st.lists(st.tuples(st.floats(0, 5), st.integers(1, 300)), max_size=60))
def test_no_key_ever_uses_more_than_its_rate_and_one_minutes_worth(asks: list[tuple[float, int]]) -> None:
    used, now, tokens = Allowance(), 0.0, 0
    for pause, wanted in asks:
        now += pause
        if used.wait_s(RATES, wanted, now) == 0.0:
            used = used.used(RATES, wanted, now)
            tokens += wanted
    assert tokens <= 600 + now * 10 + 1e-6
