"""The scheduler's decisions, one by one."""

import itertools

import pytest

from bireme.wire.plan import Logprobs, Result, Sampling, pack_ids, unpack_ids
from bireme_worker.engine.results import WrongResult
from bireme_worker.engine.sequence import Sequence, State, finish_reason
from tests.support.engine_driver import Engine, submit
from tests.support.model_rank import reference

PENALISED = Sampling(frequency_penalty=0.5)


def test_a_prompt_longer_than_the_budget_is_computed_in_chunks_and_only_the_last_one_draws() -> None:
    engine = Engine(budget=16, slots=4)
    engine.submit(submit(range(40), max_tokens=1))
    engine.run()
    rows = [plan.rows[0] for plan in engine.plans]
    assert [(row.start, row.count, row.output) for row in rows] == [(0, 16, -1), (16, 16, -1), (32, 8, 0)]


def test_decoding_goes_first_and_a_prompt_fills_the_rest_of_the_step() -> None:
    engine = Engine(budget=16, slots=4)
    engine.submit(submit([1], max_tokens=30))
    engine.step()
    engine.submit(submit(range(40), max_tokens=1))
    engine.step()
    mixed = next(plan for plan in engine.plans if len(plan.rows) == 2)
    assert [row.count for row in mixed.rows] == [1, 15]


def test_a_decode_row_takes_the_slots_last_sample_and_carries_no_ids() -> None:
    engine = Engine()
    engine.submit(submit([1, 2, 3], max_tokens=4))
    engine.run()
    rows = [plan.rows[0] for plan in engine.plans]
    assert [(row.start, row.ids, row.output) for row in rows[1:]] == [(3, b"", 1), (4, b"", 2), (5, b"", 3)]


def test_plans_are_issued_ahead_of_results_up_to_the_depth() -> None:
    engine = Engine(depth=3)
    engine.submit(submit([1], max_tokens=10))
    assert [engine.plan() is not None for _ in range(4)] == [True, True, True, False]


def test_no_row_is_issued_past_max_tokens() -> None:
    engine = Engine(depth=4)
    engine.submit(submit([1], max_tokens=2))
    engine.run()
    assert len(engine.plans) == 2


def test_a_stop_id_ends_the_request_and_is_told_and_the_row_issued_ahead_is_discarded() -> None:
    engine = Engine(depth=3)
    everything = tuple(range(50))
    sequence = engine.submit(submit([1], max_tokens=10, sampling=Sampling(stop_ids=everything)))
    engine.run()
    assert len(engine.plans) == 3
    assert len(engine.emitted[sequence]) == 1
    assert engine.finished[sequence] == "stop"


def test_blocks_of_a_stopped_request_come_back_only_with_its_last_plan() -> None:
    engine = Engine(depth=3, prefix_caching=False)
    sequence = engine.submit(submit([1], max_tokens=10, sampling=Sampling(stop_ids=tuple(range(50)))))
    for _ in range(3):
        engine.plan()
    engine.land()
    assert sequence.state is State.ENDED
    assert engine.scheduler.space.pool.used == 1
    engine.land()
    engine.land()
    assert engine.scheduler.space.pool.used == 0


def test_a_stop_id_does_not_end_a_request_before_min_tokens() -> None:
    engine = Engine()
    sampling = Sampling(stop_ids=tuple(range(49)), min_tokens=5)
    sequence = engine.submit(submit([1], max_tokens=50, sampling=sampling))
    engine.run()
    assert len(engine.emitted[sequence]) >= 6 or engine.finished[sequence] == "length"
    assert set(engine.emitted[sequence][:5]) == {49}


def test_a_row_that_is_not_finite_fails_alone() -> None:
    engine = Engine(poison=frozenset({777}))
    bad = engine.submit(submit([777], max_tokens=3))
    good = engine.submit(submit([1], max_tokens=3))
    engine.run()
    assert engine.finished == {bad: "error", good: "length"}
    assert "finite" in engine.messages[bad]
    assert engine.scheduler.counters.nonfinite == 1


def test_what_a_failed_request_computed_is_not_found_by_later_ones() -> None:
    engine = Engine(poison=frozenset({777}))
    engine.submit(submit([777, *range(40)], max_tokens=3))
    engine.run()
    later = engine.submit(submit([777, *range(40)], max_tokens=3))
    engine.run()
    assert later.cached == 0


def test_a_repeated_prompt_is_taken_from_the_cache_except_for_its_last_token() -> None:
    engine = Engine()
    first = engine.submit(submit(range(48), max_tokens=2))
    engine.run()
    second = engine.submit(submit(range(48), max_tokens=2))
    engine.run()
    assert engine.emitted[second] == engine.emitted[first]
    assert engine.cached == {second: 32}
    last_admission = [plan for plan in engine.plans if plan.admits][-1]
    assert [(row.start, row.count) for row in last_admission.rows] == [(32, 16)]


def test_a_prompt_in_the_same_plan_is_no_hit_but_one_plan_later_it_is() -> None:
    engine = Engine(budget=200, depth=2)
    together = [engine.submit(submit(range(40), max_tokens=5)) for _ in range(2)]
    engine.plan()
    later = engine.submit(submit(range(40), max_tokens=5))
    engine.plan()
    assert [sequence.cached for sequence in (*together, later)] == [0, 0, 32]
    engine.run()


def test_generated_blocks_are_found_too() -> None:
    engine = Engine()
    first = engine.submit(submit([1, 2], max_tokens=40))
    engine.run()
    turn = engine.submit(submit([1, 2, *engine.emitted[first], 3], max_tokens=2))
    engine.run()
    assert turn.cached == 32


def test_other_weights_have_other_prefixes() -> None:
    engine = Engine()
    engine.submit(submit(range(40), max_tokens=2))
    engine.run()
    engine.begin(64, salt=b"others")
    second = engine.submit(submit(range(40), max_tokens=2))
    engine.run()
    assert second.cached == 0


def test_a_request_that_outlives_a_reload_does_not_bring_its_old_prefix_along() -> None:
    engine = Engine()
    engine.submit(submit(range(40), max_tokens=20))
    engine.step()
    engine.begin(64, salt=b"others")
    engine.step()
    second = engine.submit(submit(range(40), max_tokens=2))
    engine.run()
    assert second.cached == 32


@pytest.mark.parametrize(
    ("outputs", "finish"),
    [([], ""), ([5, 9], ""), ([5, 5, 9], "stop"), ([9, 5, 5], ""), ([5, 5, 5, 5], "length"), ([5, 5, 5, 9], "stop")],
)
def test_outputs_generated_elsewhere_may_have_ended_the_request(outputs: list[int], finish: str) -> None:
    request = submit([9], 4, Sampling(stop_ids=(9,), min_tokens=2), outputs)
    assert finish_reason(Sequence.of(request, 0.0, 0)) == finish


def test_a_resumed_request_goes_on_at_its_output_index_with_the_draws_of_an_undisturbed_one() -> None:
    prompt, sampling = list(range(20)), Sampling(seed=7, frequency_penalty=0.3)
    whole, _ = reference(prompt, sampling, 30)
    engine = Engine()
    sequence = engine.submit(submit(prompt, 30, sampling, outputs=whole[:11]))
    engine.run()
    assert engine.emitted[sequence] == whole[11:]
    assert engine.plans[0].rows[0].output == 11
    assert engine.plans[0].rows[0].count == 31


def test_only_penalties_make_an_admission_carry_ids() -> None:
    engine = Engine()
    engine.submit(submit([1, 2], max_tokens=3, outputs=[5]))
    engine.submit(submit([1, 2], max_tokens=3, outputs=[5], sampling=PENALISED))
    engine.run()
    plain, penalised = engine.plans[0].admits
    assert (plain.prompt, plain.outputs) == (b"", b"")
    assert (penalised.prompt, penalised.outputs) == (pack_ids([1, 2]), pack_ids([5]))


def test_the_youngest_is_preempted_and_ends_with_the_same_ids() -> None:
    engine = Engine(kv_blocks=5, slots=2, prefix_caching=False)
    old = engine.submit(submit(range(15), max_tokens=40))
    young = engine.submit(submit(range(20, 35), max_tokens=40))
    engine.run()
    assert engine.scheduler.counters.preemptions == 1
    assert engine.emitted[old] == reference(list(range(15)), Sampling(), 40)[0]
    assert engine.emitted[young] == reference(list(range(20, 35)), Sampling(), 40)[0]
    readmitted = [plan for plan in engine.plans if plan.admits][-1]
    assert readmitted.rows[-1].output == readmitted.rows[-1].count - 15


def test_the_less_urgent_is_preempted_even_if_it_came_first() -> None:
    engine = Engine(kv_blocks=5, slots=2, prefix_caching=False)
    batch = engine.submit(submit(range(15), max_tokens=40, priority=5))
    urgent = engine.submit(submit(range(20, 35), max_tokens=40, priority=0))
    engine.run()
    assert list(engine.finished) == [urgent, batch]


def test_the_more_urgent_waits_less() -> None:
    engine = Engine(slots=1)
    engine.submit(submit([1], max_tokens=5))
    engine.step()
    later = engine.submit(submit([2], max_tokens=1, priority=1))
    sooner = engine.submit(submit([3], max_tokens=1, priority=0))
    engine.run()
    assert list(engine.finished)[1:] == [sooner, later]


def test_a_flood_of_urgent_requests_does_not_starve_the_others() -> None:
    engine = Engine(slots=1)
    patient = engine.submit(submit([1], max_tokens=1, priority=1))
    for _ in range(40):
        engine.now += 1.0
        engine.submit(submit([2], max_tokens=1, priority=0))
        engine.submit(submit([2], max_tokens=1, priority=0))
        engine.step()
    assert patient in engine.finished


def test_a_large_request_is_not_overtaken_for_ever_by_small_ones() -> None:
    engine = Engine(kv_blocks=9, slots=4, budget=128)
    engine.submit(submit([1], max_tokens=30))
    engine.step()
    large = engine.submit(submit(range(100), max_tokens=20))
    for key in range(30):
        engine.submit(submit([key], max_tokens=20))
        engine.step()
    engine.run()
    assert list(engine.finished).index(large) <= 4


def test_everybody_gets_a_slot_in_order_of_arrival() -> None:
    engine = Engine(slots=2)
    sequences = [engine.submit(submit([key], max_tokens=4)) for key in range(10)]
    engine.run()
    assert list(engine.finished) == sequences


def test_two_stages_share_the_decoding_sequences_so_that_no_row_waits_for_the_sample_of_the_plan_before() -> None:
    engine = Engine(stages=2, depth=2, budget=200)
    for key in range(6):
        engine.submit(submit([key], max_tokens=20))
    engine.run()
    steady = [{row.slot for row in plan.rows} for plan in engine.plans[6:30]]
    assert all(not before & after for before, after in itertools.pairwise(steady))
    assert {len(slots) for slots in steady} == {3}


def test_three_stages_keep_three_micro_batches_apart() -> None:
    engine = Engine(stages=3, depth=4, budget=200, slots=8)
    for key in range(7):
        engine.submit(submit([key], max_tokens=30))
    engine.run()
    steady = [{row.slot for row in plan.rows} for plan in engine.plans[9:60]]
    for first, second, third in zip(steady, steady[1:], steady[2:], strict=False):
        assert len(first | second | third) == len(first) + len(second) + len(third)
        assert max(len(first), len(second), len(third)) <= 3


def test_a_lone_request_still_has_plans_issued_ahead_over_two_stages() -> None:
    engine = Engine(stages=2, depth=2)
    engine.submit(submit([1], max_tokens=10))
    assert engine.plan() is not None
    assert engine.plan() is not None


def test_a_cancelled_request_gives_everything_back_in_every_state() -> None:
    engine = Engine(slots=2, kv_blocks=8, budget=16)
    ended, running, chunked, waiting = (engine.submit(submit(range(30), max_tokens=n)) for n in (1, 40, 40, 40))
    while ended not in engine.finished:
        engine.step()
    engine.plan()
    assert (ended.state, running.state, waiting.state) == (State.ENDED, State.RUNNING, State.WAITING)
    for sequence in (ended, running, chunked, waiting):
        engine.cancel(sequence)
        engine.cancel(sequence)
        engine.check()
    engine.run()
    engine.check_empty()


def test_a_preempted_request_can_be_cancelled_before_its_blocks_are_back() -> None:
    engine = Engine(kv_blocks=5, slots=2, prefix_caching=False, depth=3)
    engine.submit(submit(range(15), max_tokens=40))
    young = engine.submit(submit(range(20, 35), max_tokens=40))
    while young.state is not State.PREEMPTED:
        if engine.plan() is None:
            engine.land()
    engine.cancel(young)
    engine.run()
    engine.check_empty()
    assert young not in engine.finished


def test_an_ended_epoch_keeps_every_request_with_its_outputs() -> None:
    engine = Engine(slots=1)
    requests = [engine.submit(submit([key], max_tokens=20)) for key in range(3)]
    for _ in range(5):
        engine.step()
    engine.begin(64)
    assert [sequence.state for sequence in requests] == [State.WAITING] * 3
    engine.run()
    for key, sequence in enumerate(requests):
        assert engine.emitted[sequence] == reference([key], Sampling(), 20)[0]


def test_nothing_is_planned_without_an_epoch() -> None:
    engine = Engine()
    engine.scheduler.end()
    engine.submit(submit([1], max_tokens=2))
    assert engine.plan() is None


def test_logprobs_travel_with_their_token() -> None:
    engine = Engine()
    engine.submit(submit([1], max_tokens=1, sampling=Sampling(logprobs=1)))
    engine.submit(submit([2], max_tokens=1))
    engine.plan()
    asked, plain = engine.land()
    assert asked.logprobs == (Logprobs(0.0, ((unpack_ids(asked.ids)[0], -1.0),)),)
    assert plain.logprobs == ()


@pytest.mark.parametrize(
    "result",
    [
        Result(epoch=1, step=1, ids=pack_ids([1])),
        Result(epoch=2, step=0, ids=pack_ids([1])),
        Result(epoch=1, step=0, ids=b""),
        Result(epoch=1, step=0, ids=pack_ids([1, 2])),
        Result(epoch=1, step=0, ids=pack_ids([1]), logprobs=(None, None)),
    ],
)
def test_a_result_that_answers_no_plan_is_refused(result: Result) -> None:
    engine = Engine()
    engine.submit(submit([1], max_tokens=2))
    engine.plan()
    with pytest.raises(WrongResult):
        engine.scheduler.complete(result)
    engine.land()


def test_a_result_without_a_plan_is_refused() -> None:
    with pytest.raises(WrongResult, match="no plan is in flight"):
        Engine().scheduler.complete(Result(epoch=1, step=0, ids=b""))


def test_prompt_tokens_that_were_computed_and_cached_are_counted() -> None:
    engine = Engine()
    engine.submit(submit(range(40), max_tokens=3))
    engine.run()
    engine.submit(submit(range(40), max_tokens=3))
    engine.run()
    counters = engine.scheduler.counters
    assert (counters.prompt_tokens, counters.cached_tokens, counters.generation_tokens) == (48, 32, 6)


def test_queued_prefill_tokens_fall_as_chunks_are_issued() -> None:
    engine = Engine(budget=16, slots=1)
    engine.submit(submit(range(40), max_tokens=1))
    engine.submit(submit(range(10), max_tokens=1))
    seen = [engine.scheduler.queued_prefill_tokens]
    engine.plan()
    seen.append(engine.scheduler.queued_prefill_tokens)
    engine.run()
    assert [*seen, engine.scheduler.queued_prefill_tokens] == [50, 34, 0]


def test_prompt_chunks_of_one_request_follow_each_other_without_waiting_over_stages() -> None:
    engine = Engine(stages=3, depth=3, budget=16, slots=4)
    engine.submit(submit(range(60), max_tokens=2))
    assert [engine.plan() is not None for _ in range(3)] == [True, True, True]
    assert [plan.rows[0].start for plan in engine.plans] == [0, 16, 32]


def test_more_slots_than_the_budget_would_starve_prompts_and_are_no_configuration() -> None:
    with pytest.raises(AssertionError):
        Engine(slots=65, budget=64)
