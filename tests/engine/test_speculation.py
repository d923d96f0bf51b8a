"""Drafts by looking back in the text: what is guessed, when, and that nothing but the number of steps changes."""

import pytest

from bireme.wire.plan import Sampling, pack_ids, unpack_ids
from bireme_worker.engine.speculation import Speculation
from tests.support.engine_driver import Engine, submit
from tests.support.model_rank import PARROT, reference

CIRCLES = Sampling(seed=PARROT)


def guess(text: list[int], most: int = 4, speculation: Speculation | None = None) -> list[int]:
    return list(unpack_ids((speculation or Speculation(8)).draft(bytearray(pack_ids(text)), most)))


def test_what_followed_the_same_tokens_before_is_guessed() -> None:
    assert guess([1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4]) == [5, 6, 7, 8]


def test_the_longer_match_is_believed_first_and_the_latest_of_equals() -> None:
    assert guess([1, 2, 3, 4, 9, 3, 4, 7, 1, 2, 3, 4], most=1) == [9]
    assert guess([3, 4, 7, 3, 4, 8, 3, 4], most=1) == [8]


def test_a_text_that_repeats_itself_is_guessed_to_go_on() -> None:
    assert guess([7, 5, 6, 5, 6, 5, 6], most=5) == [5, 6, 5, 6, 5]


def test_nothing_is_guessed_without_a_match() -> None:
    assert guess([1, 2, 3, 4, 5, 6]) == []
    assert guess([1]) == []


def test_wrong_guesses_make_the_pauses_longer_and_a_right_one_ends_them() -> None:
    speculation, text = Speculation(4), [1, 2] * 3
    pauses = []
    for accepted in (0, 0, 0, 2):
        speculation.judge(accepted, len(text))
        before = len(text)
        while not guess(text, 1, speculation):
            text.append(1 + len(text) % 2)
        pauses.append(len(text) - before)
    assert pauses == [1, 3, 7, 0]


@pytest.mark.parametrize("stages", [1, 2])
def test_drafts_save_steps_and_change_no_token(stages: int) -> None:
    steps = {}
    for speculation in (0, 6):
        engine = Engine(stages=stages, depth=max(stages, 2), speculation=speculation)
        sequences = [engine.submit(submit([number, 2, 3], 80, CIRCLES)) for number in range(3)]
        engine.run()
        engine.check_empty()
        for number, sequence in enumerate(sequences):
            assert engine.emitted[sequence] == reference([number, 2, 3], CIRCLES, 80)[0]
        counters = engine.scheduler.counters
        assert counters.generation_tokens == 240
        assert counters.accepted <= counters.drafted
        steps[speculation] = engine.scheduler.step
    assert steps[6] < steps[0] / 2


@pytest.mark.parametrize(
    "request_",
    [
        submit([1, 2, 3], 60, Sampling(seed=PARROT, presence_penalty=0.1)),
        submit([1, 2, 3], 60, Sampling(seed=PARROT, repetition_penalty=1.1)),
    ],
)
def test_penalties_are_served_without_drafts(request_: object) -> None:
    engine = Engine(speculation=6)
    engine.submit(request_)  # type: ignore[arg-type]
    engine.run()
    assert engine.scheduler.counters.drafted == 0


def test_logprobs_come_one_per_token() -> None:
    engine = Engine(speculation=6)
    sequence = engine.submit(submit([1, 2, 3], 60, Sampling(seed=PARROT, logprobs=0)))
    seen: list[float] = []
    while engine.plan() or engine.results:
        while engine.plan():
            pass
        for emission in engine.land():
            assert len(emission.logprobs) == len(emission.ids) // 4
            seen += [-one.chosen for one in emission.logprobs]
    assert seen == list(range(60))
    assert sequence in engine.finished


def test_a_stop_id_among_the_guesses_ends_the_request_there() -> None:
    whole, _ = reference([1, 2, 3], CIRCLES, 60)
    stops = Sampling(seed=PARROT, stop_ids=(whole[-1],), min_tokens=40)
    engine = Engine(speculation=6)
    sequence = engine.submit(submit([1, 2, 3], 60, stops))
    engine.run()
    assert (engine.emitted[sequence], engine.finished[sequence]) == reference([1, 2, 3], stops, 60)
    engine.check_empty()
