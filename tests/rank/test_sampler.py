"""Draws over sharded logits, judged by the oracle's own score of every id."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bireme.wire.plan import Admit, Sampling, pack_ids
from bireme_worker.models.shard import Shard, VocabularyShard
from bireme_worker.parallel.communicator import Communicator
from bireme_worker.sampling.draw import Draw
from bireme_worker.sampling.sampler import Rows, Sampled, sample
from bireme_worker.sampling.state import SamplingState
from tests.support.communicators import on_all_ranks
from tests.support.oracle import TOLERANCE, score

VOCABULARY = 131
PROMPT = [3, 3, 50, 130, 7]


def rows_of(slots: torch.Tensor, numbers: list[int], samplings: list[Sampling]) -> Rows:
    draw = Draw.of(samplings, numbers)
    groups = torch.zeros((len(draw.groups), len(slots)), dtype=torch.int64)
    for row, group in zip(groups, draw.groups, strict=True):
        row[: len(group)] = torch.tensor(group)
    return Rows.of(slots, torch.tensor(numbers), draw, groups)


def draw(
    logits: torch.Tensor, samplings: list[Sampling], outputs: list[list[int]] | None = None, world: int = 1
) -> list[Sampled]:
    """Draw one token per row on ``world`` ranks; row r is in slot r + 1 and has ``outputs[r]`` already."""
    outputs = outputs or [[] for _ in samplings]
    numbers = [len(ids) for ids in outputs]

    def on_rank(communicator: Communicator) -> Sampled:
        shard = VocabularyShard.of(Shard(communicator.rank, communicator.size), VOCABULARY)
        state = SamplingState(len(samplings) + 1, shard, torch.device("cpu"))
        for slot, (one, ids) in enumerate(zip(samplings, outputs, strict=True), start=1):
            state.admit(Admit(slot, one, pack_ids(PROMPT), pack_ids(ids)))
        local = torch.full((len(samplings), shard.width), -torch.inf)
        local[:, : shard.count] = logits[:, shard.start : shard.start + shard.count]
        slots = torch.arange(1, len(samplings) + 1)
        return sample(local, rows_of(slots, numbers, samplings), state, communicator)

    return on_all_ranks(world, on_rank)


samplings = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 0.3, 0.8, 1.0, 1.7]),
    top_k=st.sampled_from([0, 1, 5, 130, 131, 1000]),
    top_p=st.sampled_from([1.0, 0.95, 0.5, 0.05]),
    min_p=st.sampled_from([0.0, 0.02, 0.3, 1.0]),
    repetition_penalty=st.sampled_from([1.0, 1.3, 0.7]),
    frequency_penalty=st.sampled_from([0.0, 0.5, -0.5]),
    presence_penalty=st.sampled_from([0.0, 1.0]),
    logit_bias=st.dictionaries(st.integers(0, VOCABULARY - 1), st.sampled_from([-100.0, 1.5, 100.0]), max_size=3),
    seed=st.integers(0, 2**64 - 1),
    choice=st.integers(0, 3),
    min_tokens=st.sampled_from([0, 2, 5]),
    stop_ids=st.sampled_from([(), (0,), (5, 99, 130)]),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(samplings, min_size=1, max_size=4), st.integers(0, 2**31), st.sampled_from([1, 3]))
def test_every_draw_is_the_best_by_the_oracles_score(rows: list[Sampling], seed: int, world: int) -> None:
    torch.manual_seed(seed)
    logits = torch.randn(len(rows), VOCABULARY) * 3
    outputs = [torch.randint(0, VOCABULARY, (seed % 4,)).tolist() for _ in rows]
    for sampled in draw(logits, rows, outputs, world):
        for row, token in enumerate(sampled.ids.tolist()):
            scores = score(logits[row], rows[row], PROMPT, outputs[row])
            assert scores[token] >= scores.max() - TOLERANCE


@settings(max_examples=20, deadline=None)
@given(st.lists(samplings, min_size=2, max_size=4), st.integers(0, 2**31))
def test_neither_batch_mates_nor_the_number_of_ranks_change_a_draw(rows: list[Sampling], seed: int) -> None:
    torch.manual_seed(seed)
    logits = torch.randn(len(rows), VOCABULARY) * 3
    together = draw(logits, rows)[0].ids.tolist()
    alone = [int(draw(logits[row : row + 1], [one])[0].ids) for row, one in enumerate(rows)]
    assert alone == together
    for sampled in draw(logits, rows, world=3):
        assert sampled.ids.tolist() == together


@pytest.mark.parametrize("world", [1, 2, 4])
def test_the_lower_id_wins_a_tie_inside_a_shard_and_across_shards(world: int) -> None:
    logits = torch.zeros(2, VOCABULARY)
    logits[1, [70, 71, 130]] = 5.0
    for sampled in draw(logits, [Sampling(), Sampling()], world=world):
        assert sampled.ids.tolist() == [0, 70]


@pytest.mark.parametrize("world", [1, 3])
def test_values_below_float32_mean_what_they_say(world: int) -> None:
    torch.manual_seed(6)
    rows = [
        Sampling(temperature=5e-324, seed=4),
        Sampling(temperature=1e-40, seed=4, top_p=0.9),
        Sampling(temperature=1e-5, seed=4, min_p=5e-324, top_k=3),
        Sampling(temperature=1.0, seed=4, top_p=5e-324),
        Sampling(temperature=1.5, seed=4, top_p=1e-46, min_p=1e-46),
    ]
    logits = (torch.randn(1, VOCABULARY) * 3).expand(len(rows), -1)
    for sampled in draw(logits, rows, world=world):
        assert sampled.ids.tolist() == logits.argmax(1).tolist()
    biased = [Sampling(temperature=one.temperature, top_p=one.top_p, seed=4, logit_bias={7: 1e30}) for one in rows]
    for sampled in draw(logits, biased, world=world):
        assert sampled.ids.tolist() == [7] * len(rows)


@pytest.mark.parametrize("world", [1, 2, 3])
def test_logprobs_are_of_the_raw_logits_and_sum_to_one_over_the_real_vocabulary(world: int) -> None:
    torch.manual_seed(3)
    logits = torch.randn(3, VOCABULARY) * 4
    rows = [
        Sampling(logprobs=VOCABULARY, temperature=0.7, top_k=3, logit_bias={4: 50.0}, repetition_penalty=1.5),
        Sampling(),
        Sampling(logprobs=2),
    ]
    expected = logits.double().log_softmax(1)
    for sampled in draw(logits, rows, world=world):
        report = sampled.report
        assert report is not None
        assert sorted(report.ids[0].tolist()) == list(range(VOCABULARY))  # no padding among them
        assert report.values[0].double().exp().sum() == pytest.approx(1, abs=1e-5)
        assert torch.allclose(report.values[0].double(), expected[0][report.ids[0]], atol=1e-5)
        assert report.values[0].tolist() == sorted(report.values[0].tolist(), reverse=True)
        assert report.ids[1, :2].tolist() == expected[2].topk(2).indices.tolist()
        chosen = expected[[0, 2], sampled.ids[[0, 2]]]
        assert torch.allclose(report.chosen.double(), chosen, atol=1e-5)


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("world", [1, 3])
def test_a_row_with_broken_logits_is_reported_and_the_others_are_untouched(poison: float, world: int) -> None:
    torch.manual_seed(1)
    logits = torch.randn(3, VOCABULARY)
    rows = [Sampling(temperature=0.9, seed=5, top_p=0.9, logprobs=2)] * 3
    healthy = draw(logits, rows)[0].ids.tolist()
    logits[1, 100] = poison
    for sampled in draw(logits, rows, world=world):
        assert sampled.bad.tolist() == [False, True, False]
        assert [sampled.ids.tolist()[row] for row in (0, 2)] == [healthy[0], healthy[2]]
        assert 0 <= int(sampled.ids[1]) < VOCABULARY


def test_drawn_ids_count_for_the_penalties_of_later_draws() -> None:
    logits = torch.zeros(1, VOCABULARY)
    logits[0, 9], logits[0, 8] = 2.0, 1.5
    one = Sampling(frequency_penalty=1.0)
    shard = VocabularyShard.of(Shard(0, 1), VOCABULARY)
    state = SamplingState(2, shard, torch.device("cpu"))
    state.admit(Admit(1, one, pack_ids([9, 9, 9])))

    def on_rank(communicator: Communicator) -> list[int]:
        drawn = []
        for number in range(4):
            local = torch.full((1, shard.width), -torch.inf)
            local[:, :VOCABULARY] = logits
            rows = rows_of(torch.tensor([1]), [number], [one])
            drawn.append(int(sample(local, rows, state, communicator).ids))
        return drawn

    assert on_all_ranks(1, on_rank) == [[9, 8, 9, 8]]


def test_a_new_request_in_a_slot_starts_with_clean_counts_bias_and_stops() -> None:
    shard = VocabularyShard.of(Shard(0, 1), VOCABULARY)
    state = SamplingState(2, shard, torch.device("cpu"))
    state.admit(
        Admit(
            1,
            Sampling(presence_penalty=1.0, logit_bias={4: 1.0}, min_tokens=3, stop_ids=(5,)),
            pack_ids([1]),
            pack_ids([2, 2]),
        )
    )
    assert state.counts.data[1].nonzero().flatten().tolist() == [2]
    assert state.counts.data[1, 2] == 2
    state.admit(
        Admit(1, Sampling(presence_penalty=1.0, logit_bias={6: 1.0}, min_tokens=3, stop_ids=(7,)), pack_ids([3]))
    )
    assert state.counts.data[1].count_nonzero() == 0
    assert state.in_prompt.data[1].nonzero().flatten().tolist() == [3]
    assert state.bias.data[1].nonzero().flatten().tolist() == [6]
    assert state.stops.data[1].nonzero().flatten().tolist() == [7]


def test_a_sharp_distribution_is_drawn_in_its_proportions() -> None:
    probability = torch.zeros(VOCABULARY) + 1e-9
    probability[[5, 70, 130]] = torch.tensor([0.5, 0.3, 0.2])
    logits = probability.log().expand(2000, VOCABULARY).clone()
    ids = draw(logits, [Sampling(temperature=1.0, seed=seed) for seed in range(2000)])[0].ids
    counts = torch.bincount(ids, minlength=VOCABULARY)[[5, 70, 130]].double()
    assert counts.sum() == 2000
    expected = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64) * 2000
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    assert chi_square < 13.8  # two degrees of freedom: one in a thousand
