"""Configurations of the GPT, encoder and expert families in the words of the Llama family, and what those lack.

GPT-2 says `n_embd` where others say `hidden_size`. Here everything is renamed once, so that one parser checks the
sizes of all; what a Llama does not have (an activation, a norm behind the sum, experts, pooling) is in small records.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from bireme_worker.checkpoints.errors import UnsupportedCheckpoint

GPT_ARCHITECTURES: Final = ("GPT2LMHeadModel", "OPTForCausalLM", "BloomForCausalLM")
EXPERT_ARCHITECTURES: Final = ("MixtralForCausalLM", "Qwen3MoeForCausalLM")
ENCODER_ARCHITECTURES: Final = ("BertModel", "RobertaModel", "XLMRobertaModel")
ACTIVATIONS: Final = ("relu", "gelu", "gelu_new", "gelu_pytorch_tanh")
POOLING: Final = "bireme_pooling"
"""Key under which the readers put what the directory of a sentence-transformers model says about pooling."""
UNLIMITED: Final = 2048
"""BLOOM's configuration names no longest context; this is what it was trained on."""
_FIXED: Final[Mapping[str, tuple[Any, ...]]] = {
    "GPT2LMHeadModel scale_attn_weights": (True,),
    "GPT2LMHeadModel scale_attn_by_inverse_layer_idx": (False,),
    "OPTForCausalLM enable_bias": (True,),
    "OPTForCausalLM layer_norm_elementwise_affine": (True,),
    "OPTForCausalLM _remove_final_layer_norm": (False,),
    "BloomForCausalLM apply_residual_connection_post_layernorm": (False,),
    "BertModel position_embedding_type": ("absolute",),
    "RobertaModel position_embedding_type": ("absolute",),
    "XLMRobertaModel position_embedding_type": ("absolute",),
    "Qwen3MoeForCausalLM mlp_only_layers": ([],),
    "Qwen3MoeForCausalLM decoder_sparse_step": (1,),
    "Qwen3MoeForCausalLM use_sliding_window": (False,),
    "MixtralForCausalLM sliding_window": (),
}
"""Architecture and setting → the values that are run; null and a missing setting always are."""


@dataclass(frozen=True, slots=True)
class Experts:
    """Of ``count`` MLPs with ``inner`` channels the router chooses ``chosen``; do their weights then sum to 1?"""

    count: int
    chosen: int
    inner: int
    renormalise: bool


@dataclass(frozen=True, slots=True)
class Variant:
    """What sets a GPT or an encoder apart. ``pooling`` (mean or cls) makes it an encoder."""

    activation: str
    norm_first: bool = True
    position_offset: int = 0
    token_types: int = 0
    pooling: str = ""


def in_llama_words(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """``config`` with the Llama family's names; others are returned as they are.

    Raises:
        UnsupportedCheckpoint: a setting that changes the computation in a way that is not built.
    """
    kind = _kind(config)
    for place, values in _FIXED.items():
        architecture, _, key = place.partition(" ")
        if kind == architecture and config.get(key) not in (None, *values):
            raise UnsupportedCheckpoint(f"config.json: {key} {config[key]!r} is not supported for {kind}")
    match kind:
        case "GPT2LMHeadModel":
            return _words(
                config,
                hidden_size=config.get("n_embd"),
                num_hidden_layers=config.get("n_layer"),
                num_attention_heads=config.get("n_head"),
                intermediate_size=config.get("n_inner") or 4 * config.get("n_embd", 0),
                max_position_embeddings=config.get("n_positions", 1024),
                rms_norm_eps=config.get("layer_norm_epsilon", 1e-5),
            )
        case "OPTForCausalLM":
            if config.get("word_embed_proj_dim", config.get("hidden_size")) != config.get("hidden_size"):
                raise UnsupportedCheckpoint(
                    "config.json: word_embed_proj_dim must equal hidden_size (OPT-350m differs)"
                )
            return _words(config, intermediate_size=config.get("ffn_dim"), rms_norm_eps=1e-5)
        case "BloomForCausalLM":
            hidden = config.get("hidden_size") or config.get("n_embed", 0)
            return _words(
                config,
                hidden_size=hidden,
                num_hidden_layers=config.get("n_layer") or config.get("num_hidden_layers"),
                num_attention_heads=config.get("n_head") or config.get("num_attention_heads"),
                intermediate_size=4 * hidden,
                max_position_embeddings=config.get("seq_length", UNLIMITED),
                rms_norm_eps=config.get("layer_norm_epsilon", 1e-5),
            )
        case "BertModel" | "RobertaModel" | "XLMRobertaModel":
            most = config.get("max_position_embeddings", 512) - _first_position(config)
            longest = config.get(POOLING, {}).get("longest") or most
            epsilon = config.get("layer_norm_eps", 1e-12)
            return _words(config, max_position_embeddings=min(most, longest), rms_norm_eps=epsilon)
    return config


def variant_of(config: Mapping[str, Any]) -> Variant | None:
    """What sets a GPT or an encoder apart; ``config`` in its own words. None for the Llama family."""
    kind = _kind(config)
    match kind:
        case "GPT2LMHeadModel":
            return Variant(_activation(config, "activation_function", "gelu_new"))
        case "OPTForCausalLM":
            first = bool(config.get("do_layer_norm_before", True))
            return Variant(_activation(config, "activation_function", "relu"), norm_first=first, position_offset=2)
        case "BloomForCausalLM":
            return Variant("gelu_new")
        case "BertModel" | "RobertaModel" | "XLMRobertaModel":
            return Variant(
                _activation(config, "hidden_act", "gelu"),
                norm_first=False,
                position_offset=_first_position(config),
                token_types=config.get("type_vocab_size", 2),
                pooling=config.get(POOLING, {}).get("pooling", "mean"),
            )
    return None


def experts_of(config: Mapping[str, Any]) -> Experts | None:
    """The experts of a mixture, None for other models.

    Raises:
        UnsupportedCheckpoint: numbers that can't be.
    """
    kind = _kind(config)
    if kind not in EXPERT_ARCHITECTURES:
        return None
    count = config.get("num_local_experts", config.get("num_experts", 8 if kind == "MixtralForCausalLM" else 128))
    chosen = config.get("num_experts_per_tok", 2 if kind == "MixtralForCausalLM" else 8)
    inner = config.get("intermediate_size" if kind == "MixtralForCausalLM" else "moe_intermediate_size")
    numbers = [number for number in (count, chosen, inner) if isinstance(number, int) and number > 0]
    if len(numbers) < 3 or numbers[1] > numbers[0]:
        raise UnsupportedCheckpoint(
            f"config.json has {count} experts of {inner} channels, of which {chosen} are chosen: it can't be right"
        )
    count, chosen, inner = numbers
    return Experts(count, chosen, inner, kind == "MixtralForCausalLM" or bool(config.get("norm_topk_prob", False)))


def _kind(config: Mapping[str, Any]) -> str:
    named = config.get("architectures") or []
    return str(named[0]) if named else ""


def _words(config: Mapping[str, Any], **words: Any) -> Mapping[str, Any]:
    """``config`` with other names; these families tie the embeddings unless told otherwise, and have no rotation."""
    kept = {key: value for key, value in config.items() if key not in {"hidden_act", "rope_parameters", "rope_scaling"}}
    return {"tie_word_embeddings": True, **kept, **words, "head_dim": None}


def _first_position(config: Mapping[str, Any]) -> int:
    """RoBERTa counts positions from behind the padding id."""
    return 0 if _kind(config) == "BertModel" else int(config.get("pad_token_id", 1)) + 1


def _activation(config: Mapping[str, Any], key: str, default: str) -> str:
    name = config.get(key, default)
    if name not in ACTIVATIONS:
        raise UnsupportedCheckpoint(f"config.json: {key} {name!r} is not supported, only {', '.join(ACTIVATIONS)}")
    return str(name)
