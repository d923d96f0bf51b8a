"""The scheduler of an encoder: whole texts in one step, no blocks, and everything anew in the next epoch."""

from collections import deque

from bireme.names import Admission
from bireme.wire.plan import Plan, Result, Sampling, pack_ids, unpack_ids
from bireme.wire.requests import Submit
from bireme_worker.engine.admission import Capacity, refuse
from bireme_worker.engine.results import Emission
from bireme_worker.engine.scheduler import Scheduler, SchedulerConfig

BUDGET = 40


def scheduler() -> Scheduler:
    config = SchedulerConfig(slots=4, budget=BUDGET, stages=2, depth=2, prefix_caching=False, encodes=True)
    made = Scheduler(config)
    made.begin(1, kv_blocks=2, salt=b"")
    return made


def request(key: int, length: int) -> Submit:
    return Submit(key, f"r{key}", pack_ids([key] * length), Sampling(), 1, encode=True)


def answer(plan: Plan) -> Result:
    """Each text's vector is its bytes."""
    vectors = tuple(row.ids for row in plan.rows)
    return Result(plan.epoch, plan.step, pack_ids([0] * len(plan.rows)), vectors=vectors)


def run(engine: Scheduler, plans: int = 1000) -> list[Emission]:
    flying: deque[Plan] = deque()
    emissions = []
    for _ in range(plans):
        while (plan := engine.plan()) is not None:
            assert sum(row.count for row in plan.rows) <= BUDGET
            assert all((row.start, row.blocks, row.output) == (0, (), 0) for row in plan.rows)
            flying.append(plan)
        if not flying:
            break
        emissions += engine.complete(answer(flying.popleft()))
    return emissions


def test_every_text_is_computed_whole_and_gets_its_own_vector() -> None:
    engine = scheduler()
    lengths = [1 + 13 * number % BUDGET for number in range(60)]
    sent = [engine.submit(request(key, length), 0.0) for key, length in enumerate(lengths)]
    emissions = run(engine)
    assert {id(emission.sequence) for emission in emissions} == {id(sequence) for sequence in sent}
    for emission in emissions:
        assert emission.finish == "length"
        assert emission.vector == emission.sequence.request.prompt
    assert engine.settled
    assert engine.counters.prompt_tokens == sum(lengths)


def test_several_short_texts_share_a_step() -> None:
    engine = scheduler()
    for key in range(4):
        engine.submit(request(key, 10), 0.0)
    plan = engine.plan()
    assert plan is not None
    assert [unpack_ids(row.ids)[0] for row in plan.rows] == [0, 1, 2, 3]


def test_what_an_epoch_lost_is_computed_by_the_next() -> None:
    engine = scheduler()
    for key in range(6):
        engine.submit(request(key, 30), 0.0)
    done = run(engine, plans=2)
    engine.plan()
    engine.end()
    engine.begin(2, kv_blocks=2, salt=b"")
    done += run(engine)
    assert sorted(emission.sequence.request.key for emission in done) == list(range(6))


def test_other_weights_take_the_longest_text_too() -> None:
    engine = scheduler()
    engine.submit(request(1, BUDGET), 0.0)
    engine.change_weights(b"other")
    assert [emission.sequence.request.key for emission in run(engine)] == [1]


def test_admission_takes_what_the_model_makes_and_no_text_that_is_too_long() -> None:
    encoder = Capacity(context=BUDGET, vocabulary=100, running=4, queue=4, kv_blocks=2, encodes=True)
    assert refuse(request(1, BUDGET), encoder) is None
    assert encoder.limits.context == BUDGET
    long = refuse(request(1, BUDGET + 1), encoder)
    assert long is not None
    assert "41 tokens and the model takes 40" in long.message
    writer = Capacity(context=BUDGET, vocabulary=100, running=4, queue=4, kv_blocks=9)
    for wrong in (refuse(request(1, 3), writer), refuse(Submit(1, "r", pack_ids([1]), Sampling(), 1), encoder)):
        assert wrong is not None
        assert wrong.code == Admission.NEVER_FITS
