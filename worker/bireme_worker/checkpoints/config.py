"""The shape of a model, read from config.json (or from GGUF metadata in the same words) and checked once.

Whatever the model code does not implement is refused here by name: a setting that is read over gives fluent nonsense.
No torch: HTTP processes need the context length and the end-of-sequence ids.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bireme_worker.checkpoints.errors import CorruptFile, MissingFile, UnsupportedCheckpoint

ARCHITECTURES = ("LlamaForCausalLM",)
ACTIVATIONS = ("silu",)
ROPE_TYPES = ("default", "llama3")
DTYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True, slots=True)
class Llama3Rope:
    """Frequencies below the low limit are divided by ``factor``, above the high limit kept, between them blended."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """One model of the Llama family. Sizes are of the whole model, before any sharding."""

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
    rope_scaling: Llama3Rope | None
    tie_word_embeddings: bool
    attention_bias: bool
    mlp_bias: bool
    dtype: str | None
    bos_id: int | None
    eos_ids: frozenset[int]

    @classmethod
    def parse(cls, config: Mapping[str, Any], generation: Mapping[str, Any] | None = None) -> "ModelConfig":
        """Read the dicts of config.json and generation_config.json.

        Raises:
            UnsupportedCheckpoint: a setting that Bireme does not run, or a size that is missing or senseless.
        """
        fields = _Fields(config)
        heads = fields.size("num_attention_heads")
        kv_heads = fields.size("num_key_value_heads", heads)
        hidden = fields.size("hidden_size")
        head_dim = fields.size("head_dim", hidden // heads)
        if heads % kv_heads or head_dim % 2:
            raise UnsupportedCheckpoint(
                f"config.json has {heads} attention heads, {kv_heads} key-value heads and head_dim {head_dim}: "
                "the heads must be a multiple of the key-value heads and head_dim must be even"
            )
        fields.one_of("hidden_act", ACTIVATIONS, "silu")
        if config.get("quantization_config") is not None:
            raise UnsupportedCheckpoint("config.json has quantization_config: use the unquantized or a GGUF checkpoint")
        return cls(
            architecture=_architecture(config),
            hidden_size=hidden,
            intermediate_size=fields.size("intermediate_size"),
            num_hidden_layers=fields.size("num_hidden_layers"),
            num_attention_heads=heads,
            num_key_value_heads=kv_heads,
            head_dim=head_dim,
            vocab_size=fields.size("vocab_size"),
            max_position_embeddings=fields.size("max_position_embeddings", 2048),
            rms_norm_eps=fields.number("rms_norm_eps", 1e-6),
            rope_theta=_rope_theta(config),
            rope_scaling=_rope_scaling(config),
            tie_word_embeddings=bool(config.get("tie_word_embeddings", False)),
            attention_bias=bool(config.get("attention_bias", False)),
            mlp_bias=bool(config.get("mlp_bias", False)),
            dtype=_dtype(config),
            bos_id=_first_id(config, generation or {}),
            eos_ids=_ids(config.get("eos_token_id")) | _ids((generation or {}).get("eos_token_id")),
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


class _Fields:
    """Typed access to a config dict, with errors that name the key."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._config = config

    def number(self, key: str, default: float | None = None) -> float:
        value = self._config.get(key)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
            raise UnsupportedCheckpoint(f"config.json: {key} must be a positive number, it is {value!r}")
        return value

    def size(self, key: str, default: int | None = None) -> int:
        value = self.number(key, default)
        if not isinstance(value, int):
            raise UnsupportedCheckpoint(f"config.json: {key} must be a whole number, it is {value!r}")
        return value

    def one_of(self, key: str, supported: tuple[str, ...], default: str | None = None) -> str:
        value = self._config.get(key, default)
        if value not in supported:
            raise UnsupportedCheckpoint(f"config.json: {key} {value!r} is not supported, only {', '.join(supported)}")
        return str(value)


def _architecture(config: Mapping[str, Any]) -> str:
    named = config.get("architectures") or []
    found = [name for name in named if name in ARCHITECTURES]
    if not found:
        raise UnsupportedCheckpoint(
            f"config.json: architectures {named!r} is not supported, only {', '.join(ARCHITECTURES)}"
        )
    return str(found[0])


def _rope(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """One dict for the three spellings: rope_parameters, and rope_scaling with type or rope_type."""
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(rope, Mapping):
        raise UnsupportedCheckpoint(f"config.json: the rope settings must be an object, they are {rope!r}")
    return rope


def _rope_theta(config: Mapping[str, Any]) -> float:
    # transformers 5 moved rope_theta into rope_parameters; older files have it beside rope_scaling.
    merged = {"rope_theta": _rope(config).get("rope_theta", config.get("rope_theta"))}
    return float(_Fields(merged).number("rope_theta", 10000.0))


def _rope_scaling(config: Mapping[str, Any]) -> Llama3Rope | None:
    rope = _rope(config)
    kind = {"rope_type": rope.get("rope_type", rope.get("type", "default"))}
    if rope.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0)) != 1.0:
        raise UnsupportedCheckpoint("config.json: partial_rotary_factor must be 1, other values are not supported")
    if _Fields(kind).one_of("rope_type", ROPE_TYPES) == "default":
        return None
    fields = _Fields(rope)
    return Llama3Rope(
        factor=float(fields.number("factor")),
        low_freq_factor=float(fields.number("low_freq_factor")),
        high_freq_factor=float(fields.number("high_freq_factor")),
        original_max_position_embeddings=fields.size("original_max_position_embeddings"),
    )


def _dtype(config: Mapping[str, Any]) -> str | None:
    value = config.get("dtype", config.get("torch_dtype"))
    return None if value is None else _Fields({"dtype": value}).one_of("dtype", DTYPES)


def _ids(value: Any) -> frozenset[int]:
    listed = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(item, int) and not isinstance(item, bool) for item in listed):
        raise UnsupportedCheckpoint(f"config.json: eos_token_id must be a token id or a list of them, it is {value!r}")
    return frozenset(listed)


def _first_id(config: Mapping[str, Any], generation: Mapping[str, Any]) -> int | None:
    value = config.get("bos_token_id", generation.get("bos_token_id"))
    return value if isinstance(value, int) else None
