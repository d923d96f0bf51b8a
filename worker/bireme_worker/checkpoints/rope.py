"""How far rotary positions turn: the settings of config.json in their spellings, as one small record per variant.

Cached keys are never turned again, so a variant whose frequencies depend on the length of the text is run in the range
in which they don't: `dynamic` up to max_position_embeddings, `longrope` up to the original context. Longer requests are
refused with that number. An unknown variant is refused by name: read over, it gives fluent nonsense.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from bireme_worker.checkpoints.errors import UnsupportedCheckpoint
from bireme_worker.checkpoints.fields import Fields

TYPES: Final = ("default", "linear", "dynamic", "llama3", "yarn", "longrope")


@dataclass(frozen=True, slots=True)
class LinearRope:
    """All pairs turn ``factor`` times slower."""

    factor: float


@dataclass(frozen=True, slots=True)
class Llama3Rope:
    """Frequencies below the low limit are divided by ``factor``, above the high limit kept, between them blended."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int


@dataclass(frozen=True, slots=True)
class YarnRope:
    """Pairs that turn more than ``fast`` times in the original context are kept, less than ``slow`` times divided.

    ``amplitude``: sines and cosines are multiplied by it.
    """

    factor: float
    amplitude: float
    fast: float
    slow: float
    original_max_position_embeddings: int
    whole: bool


@dataclass(frozen=True, slots=True)
class LongRope:
    """Each pair turns slower by a factor of its own."""

    factors: tuple[float, ...]
    amplitude: float


Rope = LinearRope | Llama3Rope | YarnRope | LongRope


def rope_settings(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """One dict for the three spellings: rope_parameters, and rope_scaling with type or rope_type."""
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(rope, Mapping):
        raise UnsupportedCheckpoint(f"config.json: the rope settings must be an object, they are {rope!r}")
    # Gemma 3 has one set for each kind of layer; the other's base is in its Decoder.
    full = rope.get("full_attention", rope)
    return full if isinstance(full, Mapping) else {}


def rope_theta(config: Mapping[str, Any], default: float = 10000.0) -> float:
    """The base. transformers 5 moved rope_theta into rope_parameters; older files have it beside rope_scaling."""
    merged = {"rope_theta": rope_settings(config).get("rope_theta", config.get("rope_theta"))}
    return float(Fields(merged).number("rope_theta", default))


def rope_scaling(config: Mapping[str, Any], head_dim: int, positions: int) -> Rope | None:
    """What the frequencies are scaled by; None for plain ones.

    Raises:
        UnsupportedCheckpoint: an unknown type, or a number that is missing.
    """
    rope = rope_settings(config)
    fields = Fields({"original_max_position_embeddings": config.get("original_max_position_embeddings"), **rope})
    if rope.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0)) != 1.0:
        raise UnsupportedCheckpoint("config.json: partial_rotary_factor must be 1, other values are not supported")
    match rope_type(rope):
        case "linear":
            return LinearRope(float(fields.number("factor")))
        case "llama3":
            return Llama3Rope(
                factor=float(fields.number("factor")),
                low_freq_factor=float(fields.number("low_freq_factor")),
                high_freq_factor=float(fields.number("high_freq_factor")),
                original_max_position_embeddings=fields.size("original_max_position_embeddings"),
            )
        case "yarn":
            return _yarn(rope, fields, positions)
        case "longrope":
            return _longrope(rope, fields, head_dim, positions)
        case "dynamic":
            fields.number("factor")
    return None


def rope_type(rope: Mapping[str, Any]) -> str:
    """The variant's name; `su` is what Phi-3's first files call longrope."""
    name = rope.get("rope_type", rope.get("type", "default"))
    return Fields({"rope_type": "longrope" if name == "su" else name}).one_of("rope_type", TYPES)


def longest(config: Mapping[str, Any], positions: int) -> int:
    """The longest context that the scaling allows, where that is not the model's ``positions``."""
    match rope_scaling(config, 0, positions) if rope_type(rope_settings(config)) == "yarn" else None:
        case YarnRope(factor=factor, original_max_position_embeddings=original):
            return max(positions, int(factor * original))
    if rope_type(rope_settings(config)) == "longrope":
        return min(positions, _original(config, positions))
    return positions


def _original(config: Mapping[str, Any], positions: int) -> int:
    named = {**config, **rope_settings(config)}
    return Fields(named).size("original_max_position_embeddings", positions)


def _yarn(rope: Mapping[str, Any], fields: Fields, positions: int) -> YarnRope:
    original = fields.size("original_max_position_embeddings", positions)
    factor = float(fields.number("factor", positions / original))
    mscale, everywhere = fields.optional("mscale"), fields.optional("mscale_all_dim")
    inferred = _mscale(factor, 1.0)
    if mscale and everywhere:
        inferred = _mscale(factor, mscale) / _mscale(factor, everywhere)
    return YarnRope(
        factor=factor,
        amplitude=fields.optional("attention_factor") or inferred,
        fast=fields.optional("beta_fast") or 32.0,
        slow=fields.optional("beta_slow") or 1.0,
        original_max_position_embeddings=original,
        whole=bool(rope.get("truncate", True)),
    )


def _mscale(factor: float, mscale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


def _longrope(rope: Mapping[str, Any], fields: Fields, head_dim: int, positions: int) -> LongRope:
    original = fields.size("original_max_position_embeddings", positions)
    factor = float(fields.number("factor", positions / original))
    inferred = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))
    amplitude = fields.optional("attention_factor") or inferred
    return LongRope(Fields(rope).numbers("short_factor", head_dim // 2), amplitude)
