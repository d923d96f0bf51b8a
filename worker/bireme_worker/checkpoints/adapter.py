"""A LoRA adapter in PEFT's format: `adapter_config.json` beside `adapter_model.safetensors`.

Everything in it is accounted for before a byte is used: each linear layer named has both matrices, of matching shapes
and a rank within the limit. What would change the result and is not built (DoRA, biases, whole modules) is refused.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

from bireme_worker.checkpoints.config import read_json
from bireme_worker.checkpoints.errors import CorruptFile, MissingTensor, UnsupportedCheckpoint, WrongShape
from bireme_worker.checkpoints.mapped_file import MappedFile
from bireme_worker.checkpoints.safetensors_header import read_header
from bireme_worker.checkpoints.safetensors_reader import DTYPES

CONFIG: Final = "adapter_config.json"
WEIGHTS: Final = "adapter_model.safetensors"
PREFIX: Final = "base_model.model."
_NEUTRAL: Final[Mapping[str, tuple[object, ...]]] = {
    "peft_type": ("LORA",),
    "bias": ("none", None),
    "use_dora": (False, None),
    "fan_in_fan_out": (False, None),
    "modules_to_save": (None, []),
    "trainable_token_indices": (None, []),
    "target_parameters": (None, []),
    "lora_bias": (False, None),
    "alpha_pattern": (None, {}),
    "layers_pattern": (None, "", []),
}
"""Settings that must have one of these values, or the adapter is of a kind that is not served."""


@dataclass(frozen=True)
class LowRankPair:
    """What is added to one linear layer: ``up [outputs, rank] · down [rank, inputs]``; the scale is in ``up``."""

    down: torch.Tensor
    up: torch.Tensor


@dataclass(frozen=True)
class Adapter:
    """``pairs`` by the name of the linear layer in the checkpoint."""

    name: str
    pairs: Mapping[str, LowRankPair]


def read_adapter(name: str, directory: Path, most_rank: int) -> Adapter:
    """Read an adapter whole; it is small.

    Raises:
        CheckpointError: it is broken, of a kind that is not served, or its rank is over ``most_rank``.
    """
    config = read_json(directory / CONFIG)
    for key, allowed in _NEUTRAL.items():
        if key in config and config[key] not in allowed:
            raise UnsupportedCheckpoint(
                f"adapter {name}: {directory / CONFIG} has {key} {config[key]!r}, which is not served: only "
                f"{allowed[0]!r} is"
            )
    tensors = _read_tensors(directory / WEIGHTS)
    pairs = {}
    for module in sorted({key.partition(".lora_")[0] for key in tensors}):
        down, up = (_take(tensors, f"{module}.lora_{half}.weight", directory) for half in "AB")
        _check_pair(f"adapter {name}: {module}", down, up, most_rank)
        pairs[module.removeprefix(PREFIX)] = LowRankPair(down, up * _scale(config, down.shape[0]))
    if tensors:
        raise UnsupportedCheckpoint(
            f"adapter {name}: {directory / WEIGHTS} has {min(tensors)}, which is no LoRA matrix of a linear layer"
        )
    return Adapter(name, pairs)


def _scale(config: Mapping[str, Any], rank: int) -> float:
    alpha = float(config.get("lora_alpha", rank))
    return alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)


def _take(tensors: dict[str, torch.Tensor], key: str, directory: Path) -> torch.Tensor:
    if key not in tensors:
        raise MissingTensor(f"{directory / WEIGHTS} lacks {key}: copy the adapter again")
    return tensors.pop(key)


def _check_pair(where: str, down: torch.Tensor, up: torch.Tensor, most_rank: int) -> None:
    if down.dim() != 2 or up.dim() != 2 or down.shape[0] != up.shape[1]:
        raise WrongShape(f"{where}: lora_A is {tuple(down.shape)} and lora_B {tuple(up.shape)}: no matching pair")
    if down.shape[0] > most_rank:
        raise UnsupportedCheckpoint(
            f"{where} has rank {down.shape[0]}, the most is {most_rank}: raise BIREME_MAX_ADAPTER_RANK"
        )


def _read_tensors(path: Path) -> dict[str, torch.Tensor]:
    file = MappedFile(path)
    try:
        header = read_header(file)
        tensors = {}
        for key, entry in header.items():
            file.need(entry.end)
            dtype = DTYPES[entry.dtype]
            count = (entry.end - entry.begin) // dtype.itemsize
            if count == 0:
                raise CorruptFile(f"{path} has the empty tensor {key}: copy the adapter again")
            flat = torch.frombuffer(file.data, dtype=dtype, count=count, offset=entry.begin)
            tensors[key] = flat.view(entry.shape).float().clone()
        return tensors
    finally:
        file.close()
