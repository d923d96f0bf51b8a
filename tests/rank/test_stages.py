"""How layers are spread over pipeline stages."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bireme_worker.checkpoints.config import ModelConfig
from bireme_worker.models.errors import CannotSplit
from bireme_worker.models.stages import stage_layers, weighted_split

SMOLLM2 = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "vocab_size": 49152,
    "tie_word_embeddings": True,
}


def config(**changes: object) -> ModelConfig:
    return ModelConfig.parse({**SMOLLM2, **changes})


def test_the_stage_with_the_head_gets_fewer_layers() -> None:
    # SmolLM2's head weighs as much as eight of its layers.
    parts = [stage_layers(config(), stage, 2) for stage in range(2)]
    assert [(part.first, part.last) for part in parts] == [(0, 18), (18, 30)]
    assert [(part.embeds, part.samples) for part in parts] == [(True, False), (False, True)]


def test_one_stage_holds_everything() -> None:
    part = stage_layers(config(), 0, 1)
    assert (part.first, part.last, part.embeds, part.samples) == (0, 30, True, True)


@given(st.integers(1, 100), st.integers(1, 12), st.floats(0, 20), st.floats(0, 40))
def test_no_layer_could_move_to_make_the_heaviest_stage_lighter(
    layers: int, stages: int, first: float, last: float
) -> None:
    if stages > layers:
        return
    counts = weighted_split(layers, stages, first, last)
    assert sum(counts) == layers
    assert min(counts) >= 1
    weights = [float(count) for count in counts]
    weights[0] += first
    weights[-1] += last
    heaviest = max(range(stages), key=lambda stage: weights[stage])
    movable = counts[heaviest] > 1
    assert not movable or all(weight + 1 >= weights[heaviest] - 1e-9 for weight in weights)


def test_an_explicit_split_is_taken_as_it_is() -> None:
    assert [stage_layers(config(), stage, 3, (5, 20, 5)).count for stage in range(3)] == [5, 20, 5]


def test_more_stages_than_layers_are_refused_with_both_numbers() -> None:
    with pytest.raises(CannotSplit, match=r"parallelism.pipeline is 3, but the model has 2 layers: .* at most 2"):
        stage_layers(config(num_hidden_layers=2), 0, 3)


@pytest.mark.parametrize("counts", [(15, 14), (30, 0), (10, 10, 10)])
def test_an_explicit_split_that_does_not_add_up_is_refused(counts: tuple[int, ...]) -> None:
    with pytest.raises(CannotSplit, match=r"stageLayers .* 2 stages and the model 30 layers"):
        stage_layers(config(), 0, 2, counts)
