"""Writes quantized checkpoints from the published formats, in numpy and loops: nothing here comes from the code under test.

Each writer returns the dense weights that its files stand for, by which outputs are judged.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaForCausalLM

from tests.checkpoints.tiny import change_json, save_tiny

SIZES: dict[str, Any] = {"hidden_size": 128, "intermediate_size": 256, "head_dim": 32}
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)

Matrix = npt.NDArray[Any]
Packed = tuple[dict[str, torch.Tensor], Matrix]


def rewrite(directory: Path, pack: Callable[[Matrix], Packed], settings: dict[str, Any], **model: Any) -> Any:
    """A tiny Llama whose linear layers are packed by ``pack``; returns the model with the dense weights."""
    reference = save_tiny(directory, **{**SIZES, **model})
    tensors = load_file(directory / "model.safetensors")
    for name, dense in linear_layers(reference):
        parts, values = pack(dense.numpy())
        del tensors[f"{name}.weight"]
        tensors |= {f"{name}.{kind}": part.contiguous() for kind, part in parts.items()}
        dense.copy_(torch.from_numpy(values))
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})
    change_json(directory / "config.json", quantization_config=settings)
    return reference


def linear_layers(model: LlamaForCausalLM) -> Iterator[tuple[str, torch.Tensor]]:
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and name != "lm_head":
            yield name, module.weight.data


def grouped(weight: Matrix, group_of: Matrix, bits: int) -> tuple[Matrix, Matrix, Matrix]:
    """Asymmetric codes ``[inputs, outputs]``, float16 scales and zeros ``[groups, outputs]``."""
    turned, groups, top = weight.T.astype(np.float64), int(group_of.max()) + 1, 2**bits - 1
    scales, zeros = (np.empty((groups, len(weight))) for _ in range(2))
    for group in range(groups):
        rows = turned[group_of == group]
        low, high = np.minimum(rows.min(0), 0), np.maximum(rows.max(0), 0)
        scales[group] = ((high - low) / top).astype(np.float16)
        zeros[group] = np.round(-low / scales[group]).clip(0, top)
    codes = np.round(turned / scales[group_of] + zeros[group_of]).clip(0, top)
    return codes.astype(np.int64), scales, zeros.astype(np.int64)


def words(codes: Matrix, bits: int, order: tuple[int, ...]) -> torch.Tensor:
    """Codes ``[n, many]`` into 32-bit words along the second dimension; place i of a word holds code ``order[i]``."""
    per = 32 // bits
    packed = np.zeros((len(codes), codes.shape[1] // per), np.uint32)
    for column in range(packed.shape[1]):
        for place in range(per):
            packed[:, column] |= codes[:, column * per + order[place]].astype(np.uint32) << np.uint32(bits * place)
    return torch.from_numpy(packed.view(np.int32))


def gptq(bits: int = 4, group: int = 64, *, version: int = 1, act_order: bool = False) -> Callable[[Matrix], Packed]:
    def pack(weight: Matrix) -> Packed:
        inputs = weight.shape[1]
        size = inputs if group == -1 else group
        group_of = np.arange(inputs) // size
        if act_order:
            group_of = np.random.default_rng(inputs).permutation(group_of)
        codes, scales, zeros = grouped(weight, group_of, bits)
        straight = tuple(range(32 // bits))
        parts = {
            "qweight": words(codes.T, bits, straight).T,
            "qzeros": words((zeros - (version == 1)) % 2**bits, bits, straight),
            "scales": torch.from_numpy(scales.astype(np.float16)),
            "g_idx": torch.from_numpy(group_of.astype(np.int32)),
        }
        return parts, ((codes - zeros[group_of]) * scales[group_of]).T.astype(np.float32)

    return pack


def gptq_settings(bits: int = 4, group: int = 64, *, version: int = 1, act_order: bool = False) -> dict[str, Any]:
    form = "gptq" if version == 1 else "gptq_v2"
    return {
        "quant_method": "gptq",
        "bits": bits,
        "group_size": group,
        "desc_act": act_order,
        "checkpoint_format": form,
    }


def awq(group: int = 64) -> Callable[[Matrix], Packed]:
    def pack(weight: Matrix) -> Packed:
        group_of = np.arange(weight.shape[1]) // group
        codes, scales, zeros = grouped(weight, group_of, 4)
        parts = {
            "qweight": words(codes, 4, AWQ_ORDER),
            "qzeros": words(zeros, 4, AWQ_ORDER),
            "scales": torch.from_numpy(scales.astype(np.float16)),
        }
        return parts, ((codes - zeros[group_of]) * scales[group_of]).T.astype(np.float32)

    return pack


AWQ = {"quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": True, "version": "gemm"}


def fp8(*, channel: bool, static: float | None = None) -> Callable[[Matrix], Packed]:
    def pack(weight: Matrix) -> Packed:
        values = torch.from_numpy(weight)
        scale = (values.abs().amax(1, keepdim=True) if channel else values.abs().max().reshape(1)) / 448
        packed = (values / scale).to(torch.float8_e4m3fn)
        parts = {"weight": packed, "weight_scale": scale}
        if static is not None:
            parts["input_scale"] = torch.tensor([static])
        return parts, (packed.float() * scale).numpy()

    return pack


def compressed(strategy: str, *, dynamic: bool) -> dict[str, Any]:
    return {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "ignore": ["lm_head"],
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": {"type": "float", "num_bits": 8, "strategy": strategy, "symmetric": True, "dynamic": False},
                "input_activations": {"type": "float", "num_bits": 8, "dynamic": dynamic},
            }
        },
    }


def settings_of(directory: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((directory / "config.json").read_text())["quantization_config"]
    return found
