"""Where a request goes: cost, prefix credit, pipelines, two choices, slots, ramps, panic and canaries, each by itself."""

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bireme_router.policies.canary import version_for
from bireme_router.policies.concurrency import Slots, most_in_flight, prefill_full
from bireme_router.policies.cost import Cost, Pace, Work, seconds
from bireme_router.policies.foreign import corrected
from bireme_router.policies.panic import panics
from bireme_router.policies.pipeline import worth_waking
from bireme_router.policies.placement import TIE, Candidate, Price, place
from bireme_router.policies.prefix_credit import BLOCK_BYTES, MOST, PrefixHistory, chain, share, trust_after
from bireme_router.policies.priority import Priority, named, of_number
from bireme_router.policies.slow_start import FIRST, RAMP_S, ramps
from bireme_router.policies.speed import MOST_APART, WINDOW_S, Rate, relative, usual
from bireme_router.policies.two_choices import draw_two

UNIT = st.floats(0, 1, exclude_max=True)
TEXT = st.text("ab", max_size=4).map(lambda text: text.encode() * BLOCK_BYTES)
COST = Cost(prefill=1000, decode=100)
PACE = Pace(prefill=1000.0, decode=10_000.0)


def placed(costs: Sequence[float], draws: tuple[float, float], candidates: Sequence[Candidate] = ()) -> int:
    """Where a request goes that costs so much at each group, 1 of it its own work at most."""
    fresh = [Candidate(0, 1, holds=False)] * len(costs)
    return place(candidates or fresh, lambda index: Price(costs[index], min(costs[index], 1.0)), draws)


@given(st.integers(1, 70), UNIT, UNIT)
def test_two_different_groups_are_drawn_where_there_are_two(count: int, a: float, b: float) -> None:
    drawn = draw_two(count, (a, b))
    assert len(set(drawn)) == min(count, 2)
    assert all(0 <= index < count for index in drawn)


def test_two_choices_keep_the_spread_small_where_one_choice_does_not() -> None:
    draw = random.Random(7).random
    loads = [0] * 8
    for _ in range(8000):
        loads[placed(loads, (draw(), draw()))] += 1
    assert max(loads) - min(loads) <= 12


@given(st.lists(st.integers(0, 9), min_size=2, max_size=8), UNIT, UNIT)
def test_the_most_costly_group_is_never_chosen(costs: list[int], a: float, b: float) -> None:
    chosen = placed(costs, (a, b))
    assert costs[chosen] < max(costs) or costs.count(max(costs)) > 1


def test_a_tie_goes_to_the_first_drawn_so_that_ties_spread() -> None:
    assert [placed([1, 1, 1], (draw, 0.0)) for draw in (0.0, 0.4, 0.9)] == [0, 1, 2]


@given(st.lists(st.floats(0, 9), min_size=1, max_size=20), st.data())
def test_a_holder_of_the_prefix_is_always_looked_at_and_wins_by_cost_alone(
    costs: list[float], data: st.DataObject
) -> None:
    holder = data.draw(st.integers(0, len(costs) - 1))
    candidates = [Candidate(0, 1, index == holder) for index in range(len(costs))]
    chosen = placed(costs, (data.draw(UNIT), data.draw(UNIT)), candidates)
    assert costs[chosen] <= costs[holder] + TIE


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(1, 4)), min_size=1, max_size=8))
def test_an_idle_group_sleeps_while_another_has_a_stage_without_a_request(groups: list[tuple[int, int]]) -> None:
    awake = worth_waking(groups)
    assert awake
    unfilled = any(0 < in_flight < stages for in_flight, stages in groups)
    woken = any(groups[index][0] == 0 for index in awake)
    assert woken == (not unfilled and any(in_flight == 0 for in_flight, _ in groups))


def test_a_pipeline_gets_its_second_request_before_a_second_group_is_woken() -> None:
    asleep = Candidate(0, 2, holds=False)
    assert placed([1.0, 9.0], (0.0, 0.0), [asleep, Candidate(1, 2, holds=False)]) == 1
    assert placed([1.0, 9.0], (0.0, 0.0), [asleep, Candidate(2, 2, holds=False)]) == 0


def test_the_cost_is_seconds_so_a_fast_group_may_have_more_work() -> None:
    slow, fast = Pace(500.0, 5_000.0), Pace(4000.0, 40_000.0)
    assert seconds(Work(1000, 50), COST, 0, slow) > seconds(Work(5000, 200), COST, 0, fast)


def test_the_prefix_credit_is_worth_the_prefill_that_it_saves_and_no_more() -> None:
    holder = seconds(Work(600, 0), COST, 800, PACE)
    stranger = seconds(Work(0, 0), COST, 0, PACE)
    assert holder < stranger
    crowded = seconds(Work(900, 0), COST, 800, PACE)
    assert crowded > stranger


@given(st.lists(TEXT, max_size=8), TEXT, st.integers(1, 12))
def test_the_history_knows_exactly_the_longest_prefix_it_has_kept(
    sent: list[bytes], asked: bytes, capacity: int
) -> None:
    history = PrefixHistory(capacity)
    for text in sent:
        history.remember(chain(text))
    assert len(history) <= capacity
    matched = history.matched(chain(asked))
    longest = max((_common(text, asked) for text in sent), default=0)
    assert matched <= longest
    if sum(len(chain(text)) for text in sent) <= capacity:
        assert matched == longest


def _common(one: bytes, other: bytes) -> int:
    blocks = min(len(one), len(other)) // BLOCK_BYTES
    return next((n for n in range(blocks) if one[: (n + 1) * BLOCK_BYTES] != other[: (n + 1) * BLOCK_BYTES]), blocks)


def test_the_history_forgets_the_tail_of_the_oldest_prompt_first() -> None:
    history = PrefixHistory(4)
    history.remember(chain(b"a" * 3 * BLOCK_BYTES))
    history.remember(chain(b"b" * 2 * BLOCK_BYTES))
    assert history.matched(chain(b"a" * 3 * BLOCK_BYTES)) == 2
    assert history.matched(chain(b"b" * 2 * BLOCK_BYTES)) == 2


def test_a_prompt_is_never_credited_whole_and_trust_follows_what_groups_report() -> None:
    assert share(10, 10 * BLOCK_BYTES) == MOST
    assert share(1, 4 * BLOCK_BYTES) == pytest.approx(0.25)
    assert share(0, 0) == 0.0
    trust = 1.0
    for _ in range(30):
        trust = trust_after(trust, 1000, 0)
    assert trust < 0.01
    for _ in range(30):
        trust = trust_after(trust, 1000, 2000)
    assert 0.99 < trust <= 1.0
    assert trust_after(0.5, 0, 100) == 0.5


def test_rates_follow_the_newest_samples_and_a_new_group_is_taken_for_usual() -> None:
    rate = Rate()
    assert rate.per_second(usual([], 500.0)) == 500.0
    for _ in range(20):
        rate = rate.learned(1000.0, 10.0)
    assert rate.per_second(90.0) == pytest.approx(100.0, rel=0.02)
    assert rate.seconds <= WINDOW_S
    for _ in range(20):
        rate = rate.learned(4000.0, 10.0)
    assert rate.per_second(410.0) == pytest.approx(400.0, rel=0.02)
    assert rate.learned(0.0, 5.0) == rate.learned(5.0, 0.0) == rate


@given(st.floats(1, 1e4), st.floats(1e-3, 200))
def test_the_window_bounds_what_a_rate_remembers(done: float, took: float) -> None:
    rate = Rate(600.0, 60.0).learned(done, took)
    assert rate.seconds <= max(WINDOW_S, took) + 1e-6


SLOTS = Slots(running=64, queue=32, stages=2)


def test_a_group_with_long_prompts_ahead_gets_no_more_but_a_stage_is_never_left_without_work() -> None:
    assert prefill_full(1.5, in_flight=2, stages=2, priority=Priority.STANDARD)
    assert not prefill_full(1.5, in_flight=1, stages=2, priority=Priority.STANDARD)
    assert not prefill_full(0.9, in_flight=9, stages=2, priority=Priority.STANDARD)
    assert prefill_full(0.9, in_flight=9, stages=2, priority=Priority.BATCH)
    assert not prefill_full(9.0, in_flight=9, stages=2, priority=Priority.INTERACTIVE)


def test_speeds_within_measuring_error_are_the_same_and_others_are_bounded() -> None:
    assert relative(110.0, 100.0) == relative(90.0, 100.0) == 1.0
    assert relative(50.0, 100.0) == 0.5
    assert relative(1e9, 1.0) == MOST_APART


@given(st.floats(0, 1e6), st.floats(0, 1e6), st.floats(0, 1e3))
def test_a_correction_moves_towards_what_the_leader_says_and_never_beyond(
    before: float, said: float, elapsed: float
) -> None:
    after = corrected(Work(before, before), Work(said, said), elapsed).prefill
    assert min(before, said) - 1e-6 <= after <= max(before, said) + 1e-6


def test_one_old_figure_moves_little_and_a_lasting_one_moves_all() -> None:
    work = corrected(Work(0, 0), Work(1000, 10), 1.0)
    assert work.prefill < 100
    for _ in range(100):
        work = corrected(work, Work(1000, 10), 1.0)
    assert work.prefill == pytest.approx(1000, rel=0.01)


@pytest.mark.parametrize(
    ("priority", "about", "most"),
    [
        (Priority.INTERACTIVE, True, 96),
        (Priority.STANDARD, False, 66),
        (Priority.STANDARD, True, 56),
        (Priority.BATCH, False, 56),
        (Priority.BATCH, True, 48),
    ],
)
def test_slots_are_kept_for_better_classes(priority: Priority, about: bool, most: int) -> None:
    assert most_in_flight(SLOTS, priority, interactive_about=about, ramp=1.0) == most
    assert most_in_flight(SLOTS, priority, interactive_about=about, ramp=0.0) == 1


@given(st.integers(1, 300), st.integers(0, 300), st.integers(1, 8), st.sampled_from(Priority), st.booleans())
def test_no_class_gets_more_than_the_group_takes_or_nothing_at_all(
    running: int, queue: int, stages: int, priority: Priority, about: bool
) -> None:
    slots = Slots(running, queue, stages)
    assert 1 <= most_in_flight(slots, priority, interactive_about=about, ramp=1.0) <= running + queue


def test_a_returning_group_ramps_up_beside_warm_ones_and_a_lone_one_does_not_wait() -> None:
    assert ramps([0.0]) == [1.0]
    assert ramps([0.5, 0.5]) == [1.0, 1.0]
    warm, cold = ramps([100.0, 0.0])
    assert (warm, cold) == (1.0, FIRST)
    assert ramps([100.0, RAMP_S]) == [1.0, 1.0]
    assert ramps([]) == []


@given(st.lists(st.floats(0, 60), min_size=1, max_size=8))
def test_the_warmest_group_always_has_its_whole_share(ages: Sequence[float]) -> None:
    assert max(ramps(ages)) == pytest.approx(1.0)


def test_suspicion_of_more_than_half_is_panic() -> None:
    assert [panics(4, suspected) for suspected in range(5)] == [False, False, False, True, True]
    assert panics(1, 1)
    assert not panics(0, 0)


def test_a_canary_gets_its_weight_of_the_requests() -> None:
    draw = random.Random(3).random
    drawn = [version_for(["r1", "r2", "r1"], {"r1": 95, "r2": 5}, draw()) for _ in range(4000)]
    assert 130 < drawn.count("r2") < 270
    assert drawn.count("r1") + drawn.count("r2") == 4000


def test_a_revision_without_weight_serves_only_when_no_other_can() -> None:
    assert version_for(["r1", "r2"], {"r1": 1, "r2": 0}, 0.99) == "r1"
    assert version_for(["r2"], {"r1": 1}, 0.5) is None
    assert version_for(["r1"], {}, 0.5) is None


def test_a_class_is_named_or_given_as_a_number_like_vllms() -> None:
    assert named(" Interactive ") is Priority.INTERACTIVE
    assert named("urgent") is None
    assert [of_number(number) for number in (-3, 0, 7)] == [Priority.INTERACTIVE, Priority.STANDARD, Priority.BATCH]
