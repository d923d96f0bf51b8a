"""The shapes of the models that are measured, as their config.json has them."""

from collections.abc import Mapping
from typing import Any

from bireme_worker.checkpoints.quantization import AT_LOAD, as_settings

LLAMA = {"architectures": ["LlamaForCausalLM"], "rms_norm_eps": 1e-5, "torch_dtype": "bfloat16"}
SHAPES: dict[str, dict[str, Any]] = {
    "llama8b": {
        **LLAMA,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128_256,
        "max_position_embeddings": 131_072,
        "rope_theta": 500_000.0,
    },
    "llama70b": {
        **LLAMA,
        "hidden_size": 8192,
        "intermediate_size": 28672,
        "num_hidden_layers": 80,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "vocab_size": 128_256,
        "max_position_embeddings": 131_072,
        "rope_theta": 500_000.0,
    },
    "qwen0.6b": {
        **LLAMA,
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151_936,
        "max_position_embeddings": 32_768,
        "rope_theta": 1_000_000.0,
        "tie_word_embeddings": True,
    },
}
SHAPES["175b"] = {
    **LLAMA,
    "hidden_size": 12_288,
    "intermediate_size": 32_768,
    "num_hidden_layers": 96,
    "num_attention_heads": 96,
    "num_key_value_heads": 96,
    "vocab_size": 51_200,
    "max_position_embeddings": 8192,
    "rope_theta": 10_000.0,
}
"""As many parameters as GPT-3: three matrices of 2⅔ times the width in place of its two of four times."""
SHAPES["tiny"] = {
    **LLAMA,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 1003,
    "max_position_embeddings": 32_768,
    "rope_theta": 10_000.0,
}


def quantized(config: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The same shape held in int8, int4 or fp8; "none" leaves it plain."""
    return {**config, "quantization_config": as_settings(AT_LOAD[name])} if name != "none" else dict(config)
