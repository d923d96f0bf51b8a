"""Which bytes of a checkpoint end where on which rank."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from bireme_worker.checkpoints.config import ModelConfig
from bireme_worker.checkpoints.errors import MissingTensor, UnexpectedTensor, WrongShape
from bireme_worker.checkpoints.reader import TensorInfo, bounds
from bireme_worker.models.errors import CannotShard
from bireme_worker.models.load import expected_tensors, load
from bireme_worker.models.registry import StageModel, build
from bireme_worker.models.shard import Shard
from bireme_worker.models.stages import stage_layers
from tests.checkpoints.tiny import tiny_llama

CPU = torch.device("cpu")


class MemoryReader:
    """A checkpoint in memory that remembers how many elements were read of it."""

    def __init__(self, **overrides: Any) -> None:
        model = tiny_llama(**overrides)
        self.config: Mapping[str, Any] = {**model.config.to_dict(), "architectures": ["LlamaForCausalLM"]}
        self.generation_config: Mapping[str, Any] = {}
        self.data = {name: value.detach() for name, value in model.state_dict().items()}
        if model.config.tie_word_embeddings:
            del self.data["lm_head.weight"]
        self.read_elements = 0
        self.tensors: Mapping[str, TensorInfo] = {}
        self.describe()

    def describe(self) -> None:
        self.tensors = {name: TensorInfo(name, tuple(x.shape), x.dtype, Path()) for name, x in self.data.items()}

    def read(self, name: str, slices: tuple[slice, ...] = ()) -> torch.Tensor:
        wanted = tuple(slice(*pair) for pair in bounds(self.tensors[name], slices))
        part: torch.Tensor = self.data[name][wanted].clone()
        self.read_elements += part.numel()
        return part

    def close(self) -> None:
        pass


def parts(reader: MemoryReader, tensor: int, stages: int, dtype: torch.dtype = torch.float32) -> list[StageModel]:
    config = ModelConfig.parse(reader.config)
    return [
        build(config, stage_layers(config, stage, stages), Shard(rank, tensor), dtype)
        for stage in range(stages)
        for rank in range(tensor)
    ]


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_a_model_expects_exactly_the_tensors_of_transformers(tied: bool, bias: bool) -> None:
    reader = MemoryReader(tie_word_embeddings=tied, attention_bias=bias, mlp_bias=bias)
    expected = expected_tensors(ModelConfig.parse(reader.config))
    assert expected == {name: info.shape for name, info in reader.tensors.items()}


@pytest.mark.parametrize(("tensor", "stages"), [(1, 1), (2, 1), (4, 2), (1, 2)])
@pytest.mark.parametrize("tied", [False, True])
def test_the_ranks_together_read_every_element_and_no_rank_more_than_it_keeps(
    tensor: int, stages: int, tied: bool
) -> None:
    reader = MemoryReader(tie_word_embeddings=tied, num_attention_heads=4, num_key_value_heads=4)
    covered = {name: torch.zeros(info.shape, dtype=torch.bool) for name, info in reader.tensors.items()}
    for model in parts(reader, tensor, stages):
        reader.read_elements = 0
        load(model, reader, CPU)
        weights = list(model.weights())
        assert reader.read_elements <= sum(weight.tensor.numel() for weight in weights)
        assert not any(weight.tensor.is_meta for weight in weights)
        for piece in (piece for weight in weights for piece in weight.pieces):
            covered[piece.source][piece.slices] = True
    assert all(bool(mask.all()) for mask in covered.values())


def test_a_rank_of_many_reads_only_its_share() -> None:
    reader = MemoryReader(num_attention_heads=4, num_key_value_heads=4)
    whole = sum(x.numel() for x in reader.data.values())
    load(parts(reader, 4, 2)[0], reader, CPU)
    assert reader.read_elements < whole / 4


def test_padding_rows_of_a_vocabulary_shard_are_zero() -> None:
    reader = MemoryReader()
    for model in parts(reader, 2, 1):
        load(model, reader, CPU)
        table = next(iter(model.weights())).tensor
        assert table.shape[0] == 128
        assert table[model.vocabulary.count :].count_nonzero() == 0
        real = reader.data["model.embed_tokens.weight"]
        start = model.vocabulary.start
        assert torch.equal(table[: model.vocabulary.count], real[start : start + model.vocabulary.count])


def test_weights_are_converted_to_the_wanted_dtype() -> None:
    reader = MemoryReader()
    (model,) = parts(reader, 1, 1, torch.bfloat16)
    load(model, reader, CPU)
    assert {weight.tensor.dtype for weight in model.weights()} == {torch.bfloat16}


def test_a_checkpoint_that_does_not_fit_is_refused_before_anything_is_read() -> None:
    reader = MemoryReader()
    (model,) = parts(reader, 1, 1)
    name = "model.layers.1.mlp.up_proj.weight"
    removed = reader.data.pop(name)
    reader.describe()
    with pytest.raises(MissingTensor, match=r"model\.layers\.1\.mlp\.up_proj\.weight"):
        load(model, reader, CPU)
    reader.data[name] = removed[:5]
    reader.describe()
    with pytest.raises(WrongShape, match=r"up_proj\.weight is \(5, 64\), must be \(96, 64\)"):
        load(model, reader, CPU)
    reader.data[name] = reader.data["model.layers.2.mlp.up_proj.weight"] = removed
    reader.describe()
    with pytest.raises(UnexpectedTensor, match=r"model\.layers\.2"):
        load(model, reader, CPU)
    assert reader.read_elements == 0


def test_an_intermediate_size_that_does_not_divide_is_refused_with_the_numbers() -> None:
    reader = MemoryReader(num_attention_heads=10, num_key_value_heads=10, hidden_size=80)
    with pytest.raises(CannotShard, match="96 intermediate_size channels do not divide by tensor parallelism 5"):
        parts(reader, 5, 1)
