"""T16: a vocabulary of 131 on two ranks: padded ids are never drawn, and the real ones have all the probability."""

import math
from pathlib import Path as Folder

from bireme.wire.plan import Sampling
from tests.checkpoints.tiny import save_tiny
from tests.support.paths import Asked, Engine, Path
from tests.support.rank_threads import threaded_ranks

VOCABULARY = 131


def test_t16_padded_ids_are_never_drawn_and_probabilities_add_up(tmp_path: Folder) -> None:
    save_tiny(tmp_path)
    hot = [Asked([7], Sampling(temperature=50.0, seed=seed, logprobs=VOCABULARY), 30) for seed in range(8)]
    with threaded_ranks(tmp_path, 2, 1) as ranks:
        Engine(ranks, Path()).run(hot)
    drawn = {token for one in hot for token in one.outputs}
    assert max(drawn) < VOCABULARY
    assert len(drawn) > 80  # nearly uniform: padding would have been hit half of the time
    for report in (report for one in hot for report in one.logprobs):
        ids = [token for token, _ in report.top]
        assert sorted(ids) == list(range(VOCABULARY))
        assert math.isclose(sum(math.exp(value) for _, value in report.top), 1.0, abs_tol=1e-5)
