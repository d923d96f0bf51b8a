"""T19: one request, every way to compute it. Text is judged by the oracle, logprobs by 1e-4, stages by every bit."""

from collections.abc import Iterator
from pathlib import Path as Folder
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bireme.wire.plan import Sampling
from tests.checkpoints.tiny import save_tiny
from tests.support.adapters import ALL_LINEAR, ATTENTION, write_adapter
from tests.support.oracle import Oracle
from tests.support.paths import Asked, Engine, Path
from tests.support.rank_threads import ThreadedRanks, threaded_ranks

VOCABULARY = 131
DRAFTS = 4
POOL = 14
"""Blocks of the small pool: two of the longest requests fit, three do not."""


class Ground:
    """The models by adapter number, and running ranks by (tensor, stages)."""

    def __init__(self, folder: Folder) -> None:
        torch.set_num_threads(1)
        self.base = folder / "base"
        model = save_tiny(self.base, initializer_range=0.3)
        self.models: list[Any] = [
            model,
            write_adapter(folder / "small", model, ATTENTION, rank=2, seed=1),
            write_adapter(folder / "wide", model, ALL_LINEAR, rank=4, seed=2),
        ]
        self.adapters = (("small", folder / "small"), ("wide", folder / "wide"))
        self.ranks: dict[tuple[int, int], ThreadedRanks] = {}
        self.salt = 0

    def engine(self, place: tuple[int, int], path: Path) -> Engine:
        """An engine with an empty prefix cache."""
        self.salt += 1
        return Engine(self.ranks[place], path, str(self.salt).encode())


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    made = Ground(tmp_path_factory.mktemp("paths"))
    options = {"adapters": made.adapters, "kv_bytes": 4 << 20, "speculation": DRAFTS}
    with (
        threaded_ranks(made.base, 1, 1, **options) as one,
        threaded_ranks(made.base, 1, 2, **options) as stages,
        threaded_ranks(made.base, 2, 2, **options) as both,
    ):
        made.ranks = {(1, 1): one, (1, 2): stages, (2, 2): both}
        yield made


# Some texts repeat themselves, so that drafts are right now and then; some begin alike, so that prefixes are shared.
random_text = st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=40)
circles = st.builds(
    lambda period, times: period * times, st.lists(st.integers(0, 9), min_size=1, max_size=5), st.integers(2, 9)
)
shared = st.builds(lambda count, rest: [index % 11 for index in range(count)] + rest, st.integers(16, 50), random_text)
prompts = random_text | circles | shared
samplings = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 0.0, 0.8, 1.3]),
    top_p=st.sampled_from([1.0, 0.9]),
    top_k=st.sampled_from([0, 20]),
    seed=st.integers(0, 2**64 - 1),
    presence_penalty=st.sampled_from([0.0, 0.0, 0.4]),
    min_tokens=st.sampled_from([0, 5]),
    stop_ids=st.sampled_from([(), (2, 7, 60)]),
    logprobs=st.just(0),
)
asked = st.builds(
    Asked, prompts, samplings, max_tokens=st.integers(1, 24), adapter=st.integers(0, 2), outputs=st.builds(list)
)
paths = st.builds(
    Path,
    budget=st.sampled_from([5, 16, 33, 512]),
    slots=st.sampled_from([1, 4, 16]),
    blocks=st.sampled_from([POOL, 256]),
    stages=st.sampled_from([1, 2]),
    depth=st.sampled_from([2, 3]),
    prefix_caching=st.booleans(),
    speculation=st.sampled_from([0, DRAFTS]),
)
FEW = settings(
    max_examples=80,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large],
)


@FEW
@given(
    requests=st.lists(asked, min_size=1, max_size=5),
    path=paths,
    place=st.sampled_from([(1, 1), (1, 2), (2, 2)]),
    preempt_at=st.frozensets(st.integers(1, 20), max_size=3),
    share=st.floats(0, 1),
)
def test_t19_every_way_to_compute_a_request_gives_what_the_model_gives(
    ground: Ground,
    *,
    requests: list[Asked],
    path: Path,
    place: tuple[int, int],
    preempt_at: frozenset[int],
    share: float,
) -> None:
    engine = ground.engine(place, path)
    engine.run(requests, preempt_at)
    resumed = [one.resumed(int(share * (len(one.outputs) - 1))) for one in requests]
    engine.run(resumed)  # with its prefix cache warm, if it has one
    alone = requests[0].anew()
    ground.engine((1, 1), Path()).run([alone])
    for wanted, again in [(requests[0], alone), *zip(requests, resumed, strict=True)]:
        assert (again.outputs, again.finish) == (wanted.outputs, wanted.finish)
    judge(ground, [*requests, *resumed])


def judge(ground: Ground, requests: list[Asked]) -> None:
    """By the oracle of each request's own weights, and its logprobs by those of the same pass."""
    for model, number in zip(ground.models, range(3), strict=True):
        oracle = Oracle(model)
        for one in requests:
            if one.adapter == number:
                oracle.judge(one.prompt, one.outputs, one.sampling, f"adapter {number}")
                _compare_logprobs(model, one)
        oracle.verdict.check()


def _compare_logprobs(model: Any, one: Asked) -> None:
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([[*one.prompt, *one.outputs]])).logits[0, len(one.prompt) - 1 : -1]
    expected = logits.double().log_softmax(-1)[range(len(one.outputs)), one.outputs]
    drawn = torch.tensor([logprob.chosen for logprob in one.logprobs], dtype=torch.float64)
    assert len(drawn) == len(expected)
    assert bool(((drawn - expected).abs() <= 1e-4).all())


@settings(FEW, max_examples=15)
@given(requests=st.lists(asked, min_size=1, max_size=5), path=paths)
def test_t19_two_stages_change_no_bit(ground: Ground, requests: list[Asked], path: Path) -> None:
    again = [one.anew() for one in requests]
    ground.engine((1, 1), path).run(requests)
    ground.engine((1, 2), path).run(again)
    for one, other in zip(requests, again, strict=True):
        assert (other.outputs, other.logprobs) == (one.outputs, one.logprobs)


def test_drafts_are_taken_and_save_steps_on_the_real_model(ground: Ground) -> None:
    steps = {}
    for speculation in (0, DRAFTS):
        request = Asked([1, 2, 3, 4] * 8, Sampling(temperature=0.0, logit_bias={1: 40.0}, logprobs=0), 40)
        engine = ground.engine((1, 1), Path(speculation=speculation))
        engine.run([request])
        assert request.outputs == [1] * 40
        steps[speculation] = engine.scheduler.step
        assert (engine.scheduler.counters.accepted > 25) == bool(speculation)
    assert steps[DRAFTS] < steps[0] / 3
