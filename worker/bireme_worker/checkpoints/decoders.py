"""What sets one family of dense decoders apart from Llama, read from config.json with that family's own defaults.

A setting that is not in the file has the value that transformers gives it. In Llama's words are all the sizes; here is
what a Llama does not have: windows, layers without positions, soft caps, norms behind the sublayers, packed matrices.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from bireme_worker.checkpoints.errors import UnsupportedCheckpoint
from bireme_worker.checkpoints.fields import Fields

DECODER_ARCHITECTURES: Final = (
    "LlamaForCausalLM",
    "MistralForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
    "SmolLM3ForCausalLM",
    "Gemma2ForCausalLM",
    "Gemma3ForCausalLM",
    "Phi3ForCausalLM",
)
ACTIVATIONS: Final = ("silu", "gelu", "gelu_new", "gelu_pytorch_tanh", "relu")
_GEMMA: Final[Mapping[str, Any]] = {"tie_word_embeddings": True, "head_dim": 256, "query_pre_attn_scalar": 256}
DEFAULTS: Final[Mapping[str, Mapping[str, Any]]] = {
    "MistralForCausalLM": {"sliding_window": 4096, "num_key_value_heads": 8, "max_position_embeddings": 131072},
    "Qwen2ForCausalLM": {"max_position_embeddings": 32768, "sliding_window": 4096},
    "Qwen3ForCausalLM": {"max_position_embeddings": 32768, "sliding_window": 4096, "head_dim": 128},
    "SmolLM3ForCausalLM": {"max_position_embeddings": 32768, "tie_word_embeddings": True, "rope_theta": 2e6},
    "Gemma2ForCausalLM": {
        **_GEMMA,
        "sliding_window": 4096,
        "max_position_embeddings": 8192,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
    },
    "Gemma3ForCausalLM": {
        **_GEMMA,
        "sliding_window": 4096,
        "max_position_embeddings": 131072,
        "rope_theta": 1e6,
        "rope_local_base_freq": 1e4,
    },
    "Phi3ForCausalLM": {"max_position_embeddings": 4096, "rms_norm_eps": 1e-5},
}
"""What transformers assumes where the file says nothing and Llama's default is another."""


@dataclass(frozen=True, slots=True)
class Decoder:
    """How a family differs; what it has not is empty, 0 or False. Everything by layer counts over the whole model.

    Attributes:
        activation: of the gated MLP.
        window: how many last tokens, itself included, a token sees in the layers that are ``windowed``.
        windowed: per layer.
        unrotated: layers without positions.
        local_theta: base of the rotation in windowed layers.
        attention_cap, logit_cap: soft caps, ``cap · tanh(x / cap)``.
        query_scale: the scores' divisor squared, instead of head_dim.
        output_bias: an attention bias is on the output projection too.
    """

    activation: str = "silu"
    window: int = 0
    windowed: tuple[bool, ...] = ()
    unrotated: tuple[bool, ...] = ()
    local_theta: float = 0.0
    attention_cap: float = 0.0
    logit_cap: float = 0.0
    query_scale: float = 0.0
    output_bias: bool = True


def with_defaults(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """``config`` in Llama's words, completed by its family's defaults."""
    kind = _kind(config)
    if kind not in DEFAULTS:
        return config
    given = dict(config)
    if kind == "Qwen2ForCausalLM":
        given["attention_bias"] = True  # not a setting there
    if kind.startswith("Gemma"):
        given["hidden_act"] = config.get("hidden_activation") or "gelu_pytorch_tanh"
    return {**DEFAULTS[kind], **given}


def decoder_of(config: Mapping[str, Any]) -> Decoder:
    """How the family differs; ``config`` with its defaults.

    Raises:
        UnsupportedCheckpoint: a setting that is not run, or one that does not fit the number of layers.
    """
    fields, kind = Fields(config), _kind(config)
    activation = fields.one_of("hidden_act", ACTIVATIONS, "silu")
    if config.get("use_bidirectional_attention"):
        raise UnsupportedCheckpoint("config.json: use_bidirectional_attention is not supported, only causal attention")
    layers = fields.size("num_hidden_layers")
    unrotated = _unrotated(config, layers) if kind == "SmolLM3ForCausalLM" else ()
    windowed = _windowed(config, kind, layers, unrotated)
    gemma = kind.startswith("Gemma")
    return Decoder(
        activation=activation,
        window=fields.size("sliding_window") if any(windowed) else 0,
        windowed=windowed if any(windowed) else (),
        unrotated=unrotated,
        local_theta=_local_theta(config) if kind == "Gemma3ForCausalLM" else 0.0,
        attention_cap=fields.optional("attn_logit_softcapping") if gemma else 0.0,
        logit_cap=fields.optional("final_logit_softcapping") if gemma else 0.0,
        query_scale=fields.number("query_pre_attn_scalar") if gemma else 0.0,
        output_bias=kind != "Qwen2ForCausalLM",
    )


def _windowed(config: Mapping[str, Any], kind: str, layers: int, unrotated: tuple[bool, ...]) -> tuple[bool, ...]:
    """Which layers see a window only."""
    if kind not in DEFAULTS or config.get("sliding_window") is None:
        return ()
    if kind in {"MistralForCausalLM", "Phi3ForCausalLM"}:
        return (True,) * layers
    gemma = kind.startswith("Gemma")
    if not gemma and not config.get("use_sliding_window", False):
        return ()
    types = config.get("layer_types")
    if types is not None:
        return tuple(one == "sliding_attention" for one in _per_layer(types, "layer_types", layers))
    if kind == "SmolLM3ForCausalLM":
        return unrotated
    if gemma:
        pattern = 2 if kind == "Gemma2ForCausalLM" else Fields(config).size("sliding_window_pattern", 6)
        return tuple(bool((number + 1) % pattern) for number in range(layers))
    first = config.get("max_window_layers", 28)
    return tuple(number >= first for number in range(layers))


def _unrotated(config: Mapping[str, Any], layers: int) -> tuple[bool, ...]:
    """SmolLM3: a 1 in no_rope_layers means that the layer does rotate."""
    listed = config.get("no_rope_layers")
    if listed is not None:
        return tuple(not one for one in _per_layer(listed, "no_rope_layers", layers))
    interval = Fields(config).size("no_rope_layer_interval", 4)
    return tuple((number + 1) % interval == 0 for number in range(layers))


def _per_layer(listed: Any, key: str, layers: int) -> list[Any]:
    if not isinstance(listed, list) or len(listed) != layers:
        raise UnsupportedCheckpoint(
            f"config.json: {key} must have one entry for each of {layers} layers, it is {listed!r:.80}"
        )
    return listed


def _local_theta(config: Mapping[str, Any]) -> float:
    """The base of windowed layers, in transformers 5's place or in the older one."""
    rope = config.get("rope_parameters")
    local = rope.get("sliding_attention") if isinstance(rope, Mapping) else None
    if not isinstance(local, Mapping):
        return float(Fields(config).number("rope_local_base_freq"))
    Fields(local).one_of("rope_type", ("default",), "default")
    return float(Fields(local).number("rope_theta", 1e4))


def _kind(config: Mapping[str, Any]) -> str:
    named = config.get("architectures") or []
    return str(named[0]) if named else ""
