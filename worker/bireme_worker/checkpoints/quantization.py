"""How a checkpoint holds its linear layers: `quantization_config` of config.json, read once and checked. No torch.

Every format becomes one of two kinds: integers with a scale (and zero) per group of inputs, or fp8 with a scale per
output. What would be computed differently from what the file means is refused here by name.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from bireme_worker.checkpoints.errors import UnsupportedCheckpoint

GROUP: Final = 64
"""Inputs that share a scale where we quantize ourselves."""
METHODS: Final = "gptq, awq, fp8, compressed-tensors (float-quantized) and bireme"


class Method(StrEnum):
    """Whose layout the quantized tensors have."""

    GPTQ = "gptq"
    AWQ = "awq"
    FP8 = "fp8"
    BIREME = "bireme"


@dataclass(frozen=True, slots=True)
class Scheme:
    """The format of all linear layers of a checkpoint; the output head and embeddings are plain.

    Attributes:
        bits: per weight.
        group: inputs that share a scale; 0 means all of a row.
        zero_offset: what is added to a stored zero point (GPTQ's first format stores one less).
        act_order: GPTQ's desc_act: each input names its group, in any order.
        static: fp8 inputs have a scale in the checkpoint; else each token gets its own.
    """

    method: Method
    bits: int
    group: int = 0
    zero_offset: int = 0
    act_order: bool = False
    static: bool = False

    def __str__(self) -> str:
        """A few words for messages and tools."""
        grouped = f", groups of {self.group}" if self.group else ""
        return f"{self.method} {self.bits} bits{grouped}"


AT_LOAD: Final[Mapping[str, Scheme]] = {
    "int8": Scheme(Method.BIREME, 8, GROUP),
    "int4": Scheme(Method.BIREME, 4, GROUP),
    "fp8": Scheme(Method.FP8, 8),
}
"""What `spec.model.quantization` makes of plain weights."""


def parse_quantization(config: Mapping[str, Any]) -> Scheme | None:
    """Return the scheme of a config.json, None for plain weights.

    Raises:
        UnsupportedCheckpoint: a method or setting that is not served; the message says which are.
    """
    settings = config.get("quantization_config")
    if settings is None:
        return None
    if not isinstance(settings, Mapping):
        raise UnsupportedCheckpoint(f"config.json: quantization_config must be an object, it is {settings!r}")
    match settings.get("quant_method"):
        case Method.GPTQ:
            return _gptq(settings)
        case Method.AWQ:
            return _awq(settings)
        case Method.FP8:
            return _fp8(settings)
        case "compressed-tensors":
            return _compressed(settings)
        case Method.BIREME:
            return Scheme(Method.BIREME, _bits(settings, "bits", (4, 8)), _group(settings))
        case method:
            raise UnsupportedCheckpoint(f"config.json: quant_method {method!r} is not supported, only {METHODS}")


def as_settings(scheme: Scheme) -> dict[str, Any]:
    """Return the quantization_config of a checkpoint that we quantized."""
    if scheme.method is Method.FP8:
        return {"quant_method": "fp8", "activation_scheme": "static" if scheme.static else "dynamic"}
    return {"quant_method": scheme.method.value, "bits": scheme.bits, "group_size": scheme.group}


def _gptq(settings: Mapping[str, Any]) -> Scheme:
    form = settings.get("checkpoint_format", "gptq")
    if form not in {"gptq", "gptq_v2"}:
        raise UnsupportedCheckpoint(f"config.json: checkpoint_format {form!r} is not supported, only gptq and gptq_v2")
    if settings.get("dynamic"):
        raise UnsupportedCheckpoint("config.json: quantization_config.dynamic mixes formats, which is not supported")
    bits = _bits(settings, "bits", (4, 8))
    order = bool(settings.get("desc_act", False))
    return Scheme(Method.GPTQ, bits, _group(settings), zero_offset=int(form == "gptq"), act_order=order)


def _awq(settings: Mapping[str, Any]) -> Scheme:
    version = str(settings.get("version", "gemm")).lower()
    if version != "gemm" or settings.get("zero_point", True) is not True:
        raise UnsupportedCheckpoint(f"config.json: awq of version {version!r}: only gemm with zero_point is supported")
    key = "bits" if "bits" in settings else "w_bit"
    return Scheme(Method.AWQ, _bits(settings, key, (4,)), _group(settings))


def _fp8(settings: Mapping[str, Any]) -> Scheme:
    if settings.get("weight_block_size") is not None:
        raise UnsupportedCheckpoint(
            f"config.json: fp8 in blocks of {settings['weight_block_size']} is not supported, only a scale per tensor "
            "or per output: use the bfloat16 checkpoint with model.quantization fp8"
        )
    activation = settings.get("activation_scheme", "dynamic")
    if activation not in {"static", "dynamic"}:
        raise UnsupportedCheckpoint(f"config.json: activation_scheme {activation!r}: only static and dynamic are known")
    return Scheme(Method.FP8, 8, static=activation == "static")


def _compressed(settings: Mapping[str, Any]) -> Scheme:
    groups = settings.get("config_groups")
    if settings.get("format") != "float-quantized" or not isinstance(groups, Mapping) or len(groups) != 1:
        raise UnsupportedCheckpoint(
            f"config.json: compressed-tensors of format {settings.get('format')!r} in {len(groups or ())} groups "
            "is not supported, only float-quantized in one"
        )
    (group,) = groups.values()
    weights, inputs = group.get("weights") or {}, group.get("input_activations")
    form = (weights.get("type"), weights.get("num_bits"), weights.get("strategy"), weights.get("symmetric", True))
    if (
        form[:2] != ("float", 8)
        or form[2] not in {"tensor", "channel"}
        or not form[3]
        or not isinstance(inputs, Mapping)
    ):
        raise UnsupportedCheckpoint(
            f"config.json: compressed-tensors weights {form}: only symmetric 8-bit float per tensor or channel with "
            "quantized inputs is supported"
        )
    return Scheme(Method.FP8, 8, static=not inputs.get("dynamic"))


def _bits(settings: Mapping[str, Any], key: str, known: tuple[int, ...]) -> int:
    bits = settings.get(key)
    if bits not in known:
        method = settings["quant_method"]
        raise UnsupportedCheckpoint(
            f"config.json: {method} with {bits!r} bits is not supported, only {' and '.join(map(str, known))}"
        )
    assert isinstance(bits, int)
    return bits


def _group(settings: Mapping[str, Any]) -> int:
    group = settings.get("group_size", settings.get("q_group_size", -1))
    if not isinstance(group, int) or isinstance(group, bool) or not (group == -1 or group >= 8):
        raise UnsupportedCheckpoint(f"config.json: group_size must be -1 or a number from 8 on, it is {group!r}")
    return max(group, 0)
