"""The shape of a model, read from config.json (or from GGUF metadata in the same words) and checked once.

Whatever the model code does not implement is refused here by name: a setting that is read over gives fluent nonsense.
No torch: HTTP processes need the context length and the end-of-sequence ids.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bireme_worker.checkpoints.decoders import DECODER_ARCHITECTURES, Decoder, decoder_of, with_defaults
from bireme_worker.checkpoints.errors import CorruptFile, MissingFile, UnsupportedCheckpoint
from bireme_worker.checkpoints.fields import Fields
from bireme_worker.checkpoints.quantization import Scheme, parse_quantization
from bireme_worker.checkpoints.rope import Rope, longest, rope_scaling, rope_theta
from bireme_worker.checkpoints.words import (
    ENCODER_ARCHITECTURES,
    EXPERT_ARCHITECTURES,
    GPT_ARCHITECTURES,
    Experts,
    Variant,
    experts_of,
    in_llama_words,
    variant_of,
)

ARCHITECTURES = (*DECODER_ARCHITECTURES, *GPT_ARCHITECTURES, *EXPERT_ARCHITECTURES, *ENCODER_ARCHITECTURES)
DTYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """One model, in the words of the Llama family. Sizes are of the whole model, before any sharding."""

    architecture: str
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: Rope | None
    tie_word_embeddings: bool
    attention_bias: bool
    mlp_bias: bool
    dtype: str | None
    bos_id: int | None
    eos_ids: frozenset[int]
    experts: Experts | None = None
    variant: Variant | None = None
    quantization: Scheme | None = None
    decoder: Decoder = field(default_factory=Decoder)

    @property
    def is_encoder(self) -> bool:
        """It makes vectors of texts, no text."""
        return self.variant is not None and self.variant.pooling != ""

    @classmethod
    def parse(cls, config: Mapping[str, Any], generation: Mapping[str, Any] | None = None) -> "ModelConfig":
        """Read the dicts of config.json and generation_config.json.

        Raises:
            UnsupportedCheckpoint: a setting that Bireme does not run, or a size that is missing or senseless.
        """
        architecture = _architecture(config)  # before sizes, which other families have under other names
        experts, variant = experts_of(config), variant_of(config)
        config = with_defaults(in_llama_words(config))
        fields = Fields(config)
        heads = fields.size("num_attention_heads")
        kv_heads = fields.size("num_key_value_heads", heads)
        hidden = fields.size("hidden_size")
        head_dim = fields.size("head_dim", hidden // heads)
        if heads % kv_heads or head_dim % 2:
            raise UnsupportedCheckpoint(
                f"config.json has {heads} attention heads, {kv_heads} key-value heads and head_dim {head_dim}: "
                "the heads must be a multiple of the key-value heads and head_dim must be even"
            )
        positions = fields.size("max_position_embeddings", 2048)
        return cls(
            architecture=architecture,
            hidden_size=hidden,
            intermediate_size=fields.size("intermediate_size"),
            num_hidden_layers=fields.size("num_hidden_layers"),
            num_attention_heads=heads,
            num_key_value_heads=kv_heads,
            head_dim=head_dim,
            vocab_size=fields.size("vocab_size"),
            max_position_embeddings=longest(config, positions),
            rms_norm_eps=fields.number("rms_norm_eps", 1e-6),
            rope_theta=rope_theta(config),
            rope_scaling=rope_scaling(config, head_dim, positions),
            tie_word_embeddings=bool(config.get("tie_word_embeddings", False)),
            attention_bias=bool(config.get("attention_bias", False)),
            mlp_bias=bool(config.get("mlp_bias", False)),
            dtype=_dtype(config),
            bos_id=_first_id(config, generation or {}),
            eos_ids=_ids(config.get("eos_token_id")) | _ids((generation or {}).get("eos_token_id")),
            experts=experts,
            variant=variant,
            quantization=parse_quantization(config),
            decoder=decoder_of(config),
        )


def read_json(path: Path) -> dict[str, Any]:
    """Read one JSON object, or say which file is not one."""
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise MissingFile(f"{path} is missing: copy the checkpoint again") from None
    except (ValueError, RecursionError) as error:
        raise CorruptFile(f"{path} is not JSON ({error}): copy the checkpoint again") from error
    if not isinstance(value, dict):
        raise CorruptFile(f"{path} is not a JSON object: copy the checkpoint again")
    return value


def read_optional_json(path: Path) -> dict[str, Any]:
    return read_json(path) if path.exists() else {}


def _architecture(config: Mapping[str, Any]) -> str:
    named = config.get("architectures") or []
    found = [name for name in named if name in ARCHITECTURES]
    if not found:
        raise UnsupportedCheckpoint(
            f"config.json: architectures {named!r} is not supported, only {', '.join(ARCHITECTURES)}"
        )
    return str(found[0])


def _dtype(config: Mapping[str, Any]) -> str | None:
    value = config.get("dtype", config.get("torch_dtype"))
    return None if value is None else Fields({"dtype": value}).one_of("dtype", DTYPES)


def _ids(value: Any) -> frozenset[int]:
    listed = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(item, int) and not isinstance(item, bool) for item in listed):
        raise UnsupportedCheckpoint(f"config.json: eos_token_id must be a token id or a list of them, it is {value!r}")
    return frozenset(listed)


def _first_id(config: Mapping[str, Any], generation: Mapping[str, Any]) -> int | None:
    value = config.get("bos_token_id", generation.get("bos_token_id"))
    return value if isinstance(value, int) else None
