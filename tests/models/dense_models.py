"""Tiny models of the dense decoder families, with the settings that set each apart."""

from collections.abc import Callable
from typing import Any, Final

from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    SmolLM3Config,
    SmolLM3ForCausalLM,
)

from tests.models.random_models import ENDS, LAYERS

SIZES: Final = {**LAYERS, **ENDS, "num_key_value_heads": 2, "intermediate_size": 72, "max_position_embeddings": 160}
FOUR: Final = {**SIZES, "num_hidden_layers": 4}
PHI3_ROPE: Final = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0, 1.1, 1.3, 1.7],
    "long_factor": [1.0, 2.0, 4.0, 8.0],
}

FAMILIES: Final[dict[str, Callable[[], Any]]] = {
    "mistral": lambda: MistralForCausalLM(MistralConfig(**SIZES, sliding_window=20, head_dim=16)),
    "mistral, no window": lambda: MistralForCausalLM(MistralConfig(**SIZES, sliding_window=None)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SIZES, tie_word_embeddings=True)),
    "qwen2, upper layers windowed": lambda: Qwen2ForCausalLM(
        Qwen2Config(**FOUR, use_sliding_window=True, sliding_window=17, max_window_layers=2)
    ),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SIZES, head_dim=16)),
    "smollm3": lambda: SmolLM3ForCausalLM(SmolLM3Config(**FOUR, no_rope_layer_interval=2)),
    "gemma2": lambda: Gemma2ForCausalLM(
        Gemma2Config(
            **SIZES,
            head_dim=16,
            sliding_window=20,
            query_pre_attn_scalar=24,
            attn_logit_softcapping=2.0,
            final_logit_softcapping=3.0,
        )
    ),
    "gemma3": lambda: Gemma3ForCausalLM(
        Gemma3TextConfig(
            **FOUR,
            head_dim=16,
            sliding_window=20,
            query_pre_attn_scalar=24,
            layer_types=["sliding_attention", "full_attention"] * 2,
            rope_parameters={
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
                "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e6},
            },
        )
    ),
    "phi3": lambda: Phi3ForCausalLM(Phi3Config(**SIZES, sliding_window=50)),
    "phi3, longrope": lambda: Phi3ForCausalLM(
        Phi3Config(
            **{**SIZES, "max_position_embeddings": 640}, original_max_position_embeddings=160, rope_parameters=PHI3_ROPE
        )
    ),
    "llama, other activation": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, hidden_act="gelu_pytorch_tanh")),
}

ROPES: Final[dict[str, dict[str, Any]]] = {
    "linear": {"rope_type": "linear", "factor": 3.0},
    "dynamic": {"rope_type": "dynamic", "factor": 2.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 40},
    "yarn, own slopes": {
        "rope_type": "yarn",
        "factor": 8.0,
        "original_max_position_embeddings": 64,
        "beta_fast": 16,
        "beta_slow": 2,
        "mscale": 0.7,
        "mscale_all_dim": 0.4,
        "truncate": False,
    },
}


def roped(name: str) -> Any:
    """A Llama with this kind of rotation."""
    return LlamaForCausalLM(LlamaConfig(**SIZES, rope_parameters={"rope_theta": 10000.0, **ROPES[name]}))
