"""What the scheduler does while other weights take the place of the old ones."""

from bireme_worker.engine.scheduler import SHORT_STEP
from tests.support.engine_driver import GREEDY, Engine, submit
from tests.support.model_rank import reference


def come_to_rest(engine: Engine) -> None:
    while engine.results:
        engine.land()


def test_while_holding_what_has_begun_goes_on_and_what_has_not_waits() -> None:
    engine = Engine()
    first = engine.submit(submit(range(20), max_tokens=5))
    engine.plan()
    engine.scheduler.holding = True
    resumed = engine.submit(submit([7], max_tokens=5, outputs=[1, 2]))
    second = engine.submit(submit([9], max_tokens=3))
    for _ in range(30):
        engine.step()
    assert engine.scheduler.settled
    assert set(engine.finished) == {first, resumed}
    engine.scheduler.holding = False
    engine.run()
    assert engine.emitted[second] == reference([9], GREEDY, 3)[0]
    engine.check_empty()


def test_running_sequences_are_computed_anew_from_their_first_token() -> None:
    engine = Engine()
    sequences = [engine.submit(submit([start, 2, 3], max_tokens=40)) for start in range(4)]
    for _ in range(6):
        engine.step()
    come_to_rest(engine)
    issued = len(engine.plans)
    engine.scheduler.change_weights(b"others")
    engine.check()
    engine.run()
    assert {row.start for row in engine.plans[issued].rows} == {0}
    assert [engine.emitted[s] for s in sequences] == [reference([n, 2, 3], GREEDY, 40)[0] for n in range(4)]
    engine.check_empty()


def test_a_prefix_of_the_old_weights_is_never_found_again() -> None:
    engine = Engine()
    engine.submit(submit(range(40), max_tokens=1))
    engine.run()
    engine.scheduler.change_weights(b"others")
    cold = engine.submit(submit(range(40), max_tokens=1))
    engine.run()
    warm = engine.submit(submit(range(40), max_tokens=1))
    engine.run()
    assert (cold.cached, warm.cached) == (0, 32)


def test_the_shortest_comes_first_and_alone_so_that_one_token_comes_soon() -> None:
    engine = Engine(budget=512, slots=8, kv_blocks=128)
    lengths = (100, 30, 90)
    sequences = [engine.submit(submit(range(length), max_tokens=3)) for length in lengths]
    engine.scheduler.change_weights(b"others")
    engine.run()
    assert [row.count for row in engine.plans[0].rows] == [min(lengths)]
    assert engine.emitted.keys() == set(sequences)


def test_the_shortest_may_leave_before_its_turn() -> None:
    engine = Engine(budget=512, slots=8, kv_blocks=128)
    short, long = engine.submit(submit(range(30), max_tokens=3)), engine.submit(submit(range(50), max_tokens=3))
    engine.scheduler.change_weights(b"others")
    engine.scheduler.cancel(short)
    engine.run()
    assert engine.emitted.keys() == {long}
    engine.check_empty()


def test_steps_are_short_until_all_that_waited_is_computed_anew() -> None:
    engine = Engine(budget=512, slots=8, kv_blocks=128)
    for start in range(4):
        engine.submit(submit(range(start, start + 100), max_tokens=3))
    engine.scheduler.change_weights(b"others")
    engine.submit(submit(range(300), max_tokens=1))
    engine.run()
    counts = [sum(row.count for row in plan.rows) for plan in engine.plans]
    assert max(counts[:6]) == SHORT_STEP
    assert max(counts) > SHORT_STEP
