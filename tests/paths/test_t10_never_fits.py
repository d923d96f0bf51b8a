"""T10: what can never fit is refused at once with the numbers, and the next request is served."""

from pathlib import Path as Folder

import pytest

from bireme.names import Admission
from bireme.wire.plan import Sampling
from bireme_worker.engine.admission import Capacity, refuse
from tests.checkpoints.tiny import save_tiny
from tests.support.oracle import Oracle
from tests.support.paths import Asked, Engine, Path
from tests.support.rank_threads import threaded_ranks

POOL = Capacity(context=256, vocabulary=131, running=4, queue=4, kv_blocks=9)
"""Eight blocks of sixteen tokens."""


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "words"),
    [
        (300, 1, "the prompt has 300 tokens and the context holds 256: shorten it to at most 255"),
        (128, 1, "the prompt has 128 tokens and the KV cache holds 128: shorten it to at most 127"),
        (100, 29, "together 129, and the KV cache holds 128: ask for at most 28"),
    ],
)
def test_t10_a_request_larger_than_the_pool_is_refused_with_the_numbers(
    prompt: int, max_tokens: int, words: str
) -> None:
    refusal = refuse(Asked([5] * prompt, Sampling(), max_tokens).submission, POOL)
    assert refusal is not None
    assert refusal.code == Admission.NEVER_FITS
    assert words in refusal.message


def test_t10_the_largest_that_fits_is_served_and_others_after_it(tmp_path: Folder) -> None:
    model = save_tiny(tmp_path, initializer_range=0.3)
    largest, next_one = Asked(list(range(100)), Sampling(), 28), Asked([1, 2, 3], Sampling(), 100)
    assert refuse(largest.submission, POOL) is None
    with threaded_ranks(tmp_path) as ranks:
        engine = Engine(ranks, Path(blocks=POOL.kv_blocks, budget=32))
        engine.run([largest, next_one])
    assert (len(largest.outputs), len(next_one.outputs)) == (28, 100)
    assert engine.scheduler.space.pool.used == 0
    oracle = Oracle(model)
    oracle.judge(largest.prompt, largest.outputs)
    oracle.judge(next_one.prompt, next_one.outputs)
    oracle.verdict.check()
