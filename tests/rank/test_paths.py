"""One request, many ways to compute it: chunked or whole, alone or in a batch, on any number of ranks and stages."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import LlamaForCausalLM

from bireme.wire.plan import Sampling
from tests.checkpoints.tiny import save_tiny
from tests.support.generation import Request, generate
from tests.support.oracle import Oracle
from tests.support.rank_threads import ThreadedRanks, threaded_ranks

SAMPLED = Sampling(temperature=0.9, seed=2**63 + 17, top_p=0.95, presence_penalty=0.4, logprobs=0)
LENGTHS = (3, 16, 33, 70)
STEPS = 24


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, LlamaForCausalLM]:
    directory = tmp_path_factory.mktemp("tiny")
    return directory, save_tiny(directory)


@pytest.fixture
def single(tiny: tuple[Path, LlamaForCausalLM]) -> Iterator[ThreadedRanks]:
    with threaded_ranks(tiny[0]) as ranks:
        yield ranks


def requests(sampling: Sampling = SAMPLED) -> list[Request]:
    torch.manual_seed(23)
    return [Request(torch.randint(0, 131, (length,)).tolist(), STEPS, sampling) for length in LENGTHS]


def outputs(ranks: ThreadedRanks, *, chunk: int = 512, alone: bool = False, depth: int = 2) -> list[list[int]]:
    batch = requests()
    if alone:
        for request in batch:
            generate(ranks, [request], chunk=chunk, depth=depth)
    else:
        generate(ranks, batch, chunk=chunk, depth=depth)
    return [request.outputs for request in batch]


def test_a_chunked_prompt_gives_what_a_whole_one_gives(single: ThreadedRanks) -> None:
    assert outputs(single, chunk=7) == outputs(single)


def test_a_request_in_a_batch_gives_what_it_gives_alone(single: ThreadedRanks) -> None:
    assert outputs(single, alone=True) == outputs(single)


def test_more_plans_in_flight_change_nothing(single: ThreadedRanks) -> None:
    assert outputs(single, depth=4) == outputs(single, depth=1)


@pytest.mark.parametrize(("tensor", "stages"), [(2, 1), (4, 1), (1, 2), (2, 2)])
@pytest.mark.parametrize("depth", [1, 3])
def test_draws_do_not_depend_on_ranks_stages_or_depth(
    tiny: tuple[Path, LlamaForCausalLM], single: ThreadedRanks, tensor: int, stages: int, depth: int
) -> None:
    with threaded_ranks(tiny[0], tensor, stages) as ranks:
        assert outputs(ranks, chunk=20, depth=depth) == outputs(single, chunk=20)


def test_pipeline_stages_change_no_bit(tiny: tuple[Path, LlamaForCausalLM], single: ThreadedRanks) -> None:
    one, two = requests(), requests()
    generate(single, one, chunk=20)
    with threaded_ranks(tiny[0], stages=2) as ranks:
        generate(ranks, two, chunk=20)
    assert [request.logprobs for request in two] == [request.logprobs for request in one]


def test_late_arrivals_join_a_running_batch(tiny: tuple[Path, LlamaForCausalLM]) -> None:
    directory, model = tiny
    torch.manual_seed(4)
    batch = [
        Request(torch.randint(0, 131, (5 + 7 * number,)).tolist(), 20, sampling, arrives=2 * number)
        for number, sampling in enumerate([Sampling(), Sampling(temperature=0.7, seed=99)] * 8)
    ]
    with threaded_ranks(directory, tensor=2, stages=2, kv_bytes=1 << 20) as ranks:
        generate(ranks, batch, chunk=48)
    oracle = Oracle(model)
    for number, request in enumerate(batch):
        oracle.judge(request.prompt, request.outputs, request.sampling, str(number))
    oracle.verdict.check()


def test_padded_vocabulary_entries_are_never_drawn(tiny: tuple[Path, LlamaForCausalLM]) -> None:
    hot = [Request([5], 40, Sampling(temperature=50.0, seed=seed)) for seed in range(8)]
    with threaded_ranks(tiny[0], tensor=2) as ranks:
        generate(ranks, hot)
    drawn = {token for request in hot for token in request.outputs}
    assert max(drawn) < 131
    assert len(drawn) > 80  # nearly uniform: padding would have been hit half of the time
