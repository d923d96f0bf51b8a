"""GPT-2, OPT, BLOOM, Mixtral and Qwen3-MoE against transformers, in every layout."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from bireme_worker.checkpoints.config import ModelConfig
from bireme_worker.checkpoints.errors import UnsupportedCheckpoint
from bireme_worker.checkpoints.words import Experts
from bireme_worker.models.errors import CannotShard
from bireme_worker.models.layers.experts import MixtureOfExperts
from bireme_worker.models.load import expected_tensors
from bireme_worker.models.registry import build
from bireme_worker.models.shard import Shard
from bireme_worker.models.stages import stage_layers
from bireme_worker.parallel.communicator import SoloCommunicator
from bireme_worker.parallel.gate import EpochGate
from tests.models.random_models import MODELS, judge, written

TP_PP = [(1, 1), (2, 1), (1, 2), (2, 2)]


@pytest.mark.parametrize(("tensor", "stages"), TP_PP)
@pytest.mark.parametrize("family", MODELS)
def test_logits_and_ids_are_those_of_transformers(tmp_path: Path, family: str, tensor: int, stages: int) -> None:
    judge(tmp_path, written(tmp_path, MODELS[family]), tensor, stages)


def test_published_files_without_a_prefix_and_with_masks_are_read(tmp_path: Path) -> None:
    model, file = written(tmp_path, MODELS["gpt2"]), tmp_path / "model.safetensors"
    tensors = {name.removeprefix("transformer."): tensor for name, tensor in load_file(file).items()}
    save_file({**tensors, "h.0.attn.bias": torch.ones(1, 1, 160, 160)}, file, {"format": "pt"})
    judge(tmp_path, model, 1, 1, steps=2)


@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.parametrize("family", ["mixtral", "qwen3 experts"])
def test_whole_experts_on_each_rank_give_the_same(tmp_path: Path, family: str, stages: int) -> None:
    judge(tmp_path, written(tmp_path, MODELS[family]), 2, stages, spread_experts=True)


def mixture(shard: Shard) -> MixtureOfExperts:
    """Random weights, as a load would leave them."""
    torch.manual_seed(3)
    layer = MixtureOfExperts("mlp", ("gate", "up", "down"), Experts(6, 2, 9, True), 16, shard, dtype=torch.float32)
    for weight in layer.weights:
        weight.tensor = torch.randn(weight.tensor.shape)
    return layer


@pytest.mark.parametrize("tokens", [1, 2, 33])
def test_experts_that_compute_everything_agree_with_those_that_take_their_own_tokens(tokens: int) -> None:
    layer = mixture(Shard(0, 1))
    x = torch.randn(tokens, 16)
    shares, chosen = layer.route(x)
    torch.testing.assert_close(layer.everywhere(x, shares, chosen), layer.grouped(x, shares, chosen))
    gate = EpochGate(1)
    torch.testing.assert_close(layer(x, SoloCommunicator(gate)), layer.grouped(x, shares, chosen))
    gate.close()


def test_experts_are_refused_where_they_do_not_divide_and_cut_the_other_way_where_they_do() -> None:
    with pytest.raises(CannotShard, match="9 channels of an expert do not divide by tensor parallelism 2"):
        mixture(Shard(0, 2))
    mixture(Shard(1, 2, spread_experts=True))
    with pytest.raises(CannotShard, match="6 experts do not divide by tensor parallelism 4"):
        mixture(Shard(0, 4, spread_experts=True))


def test_half_of_the_experts_take_half_of_the_memory() -> None:
    def bytes_of(shard: Shard) -> int:
        return sum(weight.nbytes for weight in mixture(shard).weights)

    router = 6 * 16 * 4
    assert 2 * (bytes_of(Shard(0, 2, spread_experts=True)) - router) == bytes_of(Shard(0, 1)) - router


LARGE: dict[str, dict[str, int]] = {
    "OPTForCausalLM": {
        "hidden_size": 12288,
        "ffn_dim": 49152,
        "num_hidden_layers": 96,
        "num_attention_heads": 96,
        "max_position_embeddings": 2048,
        "vocab_size": 50272,
    },
    "BloomForCausalLM": {"hidden_size": 14336, "n_layer": 70, "n_head": 112, "vocab_size": 250880, "seq_length": 2048},
}


@pytest.mark.parametrize(("family", "parameters"), [("OPTForCausalLM", 174.6e9), ("BloomForCausalLM", 176.2e9)])
def test_models_of_175_billion_parameters_fit_eight_ranks_on_four_stages(family: str, parameters: float) -> None:
    config = ModelConfig.parse({"architectures": [family], **LARGE[family]})
    sizes = [torch.Size(shape).numel() for shape in expected_tensors(config).values()]
    assert sum(sizes) == pytest.approx(parameters, rel=0.002)
    ranks = [build(config, stage_layers(config, stage, 4), Shard(7, 8), torch.bfloat16) for stage in range(4)]
    assert max(sum(weight.nbytes for weight in rank.weights()) for rank in ranks) < 14 << 30


REFUSED = [
    (
        {"architectures": ["GPT2LMHeadModel"], "scale_attn_by_inverse_layer_idx": True},
        "scale_attn_by_inverse_layer_idx",
    ),
    ({"architectures": ["GPT2LMHeadModel"], "activation_function": "swish"}, "activation_function"),
    ({"architectures": ["DeepseekV3ForCausalLM"], "kv_lora_rank": 512}, "DeepseekV3ForCausalLM"),
    ({"architectures": ["Gemma3ForConditionalGeneration"], "text_config": {}}, "Gemma3ForConditionalGeneration"),
    ({"architectures": ["OPTForCausalLM"], "hidden_size": 1024, "word_embed_proj_dim": 512}, "word_embed_proj_dim"),
    ({"architectures": ["MixtralForCausalLM"], "num_experts_per_tok": 9, "intermediate_size": 8}, "9 are chosen"),
    ({"architectures": ["Qwen3MoeForCausalLM"], "mlp_only_layers": [1], "moe_intermediate_size": 8}, "mlp_only_layers"),
]


@pytest.mark.parametrize(("config", "words"), REFUSED, ids=[words for _, words in REFUSED])
def test_what_is_not_built_is_refused_by_name(config: dict[str, object], words: str) -> None:
    with pytest.raises(UnsupportedCheckpoint, match=words):
        ModelConfig.parse(config)
