"""config.json is understood in all its spellings, and what we do not run is refused by name."""

from pathlib import Path
from typing import Any

import pytest
from transformers import LlamaConfig

from bireme_worker.checkpoints.config import ModelConfig
from bireme_worker.checkpoints.errors import CorruptFile, UnsupportedCheckpoint
from bireme_worker.checkpoints.layout import load_model_config
from bireme_worker.checkpoints.rope import Llama3Rope
from tests.checkpoints.tiny import LLAMA3, TINY, save_tiny, tiny_llama, write_gguf

LLAMA3_ROPE = Llama3Rope(8.0, 1.0, 4.0, 8192)
BASE: dict[str, Any] = {"architectures": ["LlamaForCausalLM"], **TINY}

GEMMA: dict[str, Any] = {**BASE, "architectures": ["Gemma2ForCausalLM"]}


def without(key: str) -> dict[str, Any]:
    return {name: value for name, value in BASE.items() if name != key}


def test_what_transformers_writes_is_read_back(tmp_path: Path) -> None:
    save_tiny(tmp_path, rope_parameters=LLAMA3, tie_word_embeddings=True)
    config = load_model_config(tmp_path)
    assert config.rope_scaling == LLAMA3_ROPE
    assert config.rope_theta == 10000.0
    assert config.head_dim == 16
    assert config.tie_word_embeddings
    assert config.dtype == "float32"
    assert config.eos_ids == {2}
    assert config.bos_id == 1


@pytest.mark.parametrize(
    "spelling",
    [
        {"rope_theta": 5e5, "rope_scaling": {**LLAMA3, "rope_theta": 5e5}},
        {
            "rope_theta": 5e5,
            "rope_scaling": {**{k: v for k, v in LLAMA3.items() if k != "rope_type"}, "type": "llama3"},
        },
        {"rope_parameters": {**LLAMA3, "rope_theta": 5e5}},
    ],
)
def test_the_three_spellings_of_rope_scaling_mean_the_same(spelling: dict[str, Any]) -> None:
    if "rope_scaling" in spelling:
        spelling["rope_scaling"].pop("rope_theta", None)
    config = ModelConfig.parse({**BASE, **spelling})
    assert config.rope_scaling == LLAMA3_ROPE
    assert config.rope_theta == 5e5


@pytest.mark.parametrize("rope", [{}, {"rope_scaling": None}, {"rope_parameters": {"rope_type": "default"}}])
def test_without_scaling_the_defaults_are_those_of_transformers(rope: dict[str, Any]) -> None:
    ours = ModelConfig.parse({**BASE, **rope})
    theirs: Any = LlamaConfig(**TINY)
    assert ours.rope_scaling is None
    assert ours.rope_theta == theirs.rope_parameters["rope_theta"]
    assert ours.rms_norm_eps == theirs.rms_norm_eps
    assert ours.max_position_embeddings == theirs.max_position_embeddings
    assert ours.tie_word_embeddings == theirs.tie_word_embeddings


def test_every_way_to_name_an_end_counts() -> None:
    config = ModelConfig.parse({**BASE, "eos_token_id": 2}, {"eos_token_id": [2, 7, 9]})
    assert config.eos_ids == {2, 7, 9}


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({**BASE, "architectures": ["FancyForCausalLM"]}, r"FancyForCausalLM.*only LlamaForCausalLM"),
        (without("architectures"), "only LlamaForCausalLM"),
        ({**BASE, "hidden_act": "snake"}, "hidden_act 'snake' is not supported, only silu, gelu"),
        (
            {**BASE, "rope_scaling": {"type": "spiral", "factor": 2.0}},
            "rope_type 'spiral' is not supported, only default, linear, dynamic, llama3, yarn, longrope",
        ),
        ({**BASE, "rope_parameters": {"rope_type": "linear"}}, "factor must be a positive number"),
        ({**BASE, "rope_parameters": {"rope_type": "longrope", "short_factor": [1]}}, "list of 8 numbers"),
        ({**GEMMA, "use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ({**GEMMA, "layer_types": ["sliding_attention"]}, "layer_types must have one entry for each of 2 layers"),
        ({**BASE, "rope_scaling": {"rope_type": "llama3"}}, "factor must be a positive number"),
        ({**BASE, "rope_scaling": "llama3"}, "must be an object"),
        ({**BASE, "partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({**BASE, "quantization_config": {"quant_method": "gptq"}}, "gptq with None bits"),
        ({**BASE, "torch_dtype": "float64"}, "dtype 'float64'"),
        ({**BASE, "num_attention_heads": 5}, "5 attention heads, 2 key-value heads"),
        ({**BASE, "num_attention_heads": 0}, "num_attention_heads must be a positive"),
        ({**BASE, "hidden_size": "64"}, "hidden_size must be a positive number, it is '64'"),
        ({**BASE, "hidden_size": 64.5}, "hidden_size must be a whole number"),
        ({**BASE, "eos_token_id": "</s>"}, "eos_token_id"),
        (without("intermediate_size"), "intermediate_size must be a positive number, it is None"),
        (without("vocab_size"), "vocab_size"),
    ],
)
def test_what_we_do_not_run_is_refused_by_name(config: dict[str, Any], words: str) -> None:
    with pytest.raises(UnsupportedCheckpoint, match=words):
        ModelConfig.parse(config)


def test_a_config_that_is_no_object_is_refused_by_name(tmp_path: Path) -> None:
    save_tiny(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(CorruptFile, match=r"config\.json is not a JSON object"):
        load_model_config(tmp_path)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("rope", [{"rope_type": "default", "rope_theta": 1e5}, {**LLAMA3, "rope_theta": 5e5}])
def test_gguf_metadata_gives_the_config_of_the_original(tmp_path: Path, tied: bool, rope: dict[str, Any]) -> None:
    (tmp_path / "hf").mkdir()
    overrides: dict[str, Any] = {"tie_word_embeddings": tied, "rope_parameters": rope}
    save_tiny(tmp_path / "hf", **overrides)
    write_gguf(tmp_path / "m.gguf", tiny_llama(**overrides))
    assert load_model_config(tmp_path) == load_model_config(tmp_path / "hf")
