"""Which device a rank computes on, and what follows from it: the default dtype and the size of the key-value cache."""

from pathlib import Path
from typing import Final

import torch

from bireme.names import Env
from bireme_worker.identity import Identity
from bireme_worker.models.errors import ConfigurationError
from bireme_worker.models.kv_cache import BLOCK_SIZE, FORMATS, block_bytes
from bireme_worker.models.layers.flattening import reserved_bytes
from bireme_worker.models.registry import StageModel
from bireme_worker.quant.gpu import FP8_CAPABILITY

DTYPES: Final = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
AUTO: Final = {"cpu": torch.float32, "cuda": torch.bfloat16}
"""`auto`: bfloat16 is fast on few CPUs, float16 on none."""
CPU_KV_BYTES: Final = 48 << 20
"""Default cache of a CPU rank: a laptop runs several ranks, and `engine.kvCache.bytes` asks for more."""
LEAST_BLOCKS: Final = 64
"""Blocks of the smallest default cache, block 0 (padding) included."""
KV_FRACTION: Final = 0.9
"""Share of a GPU's free memory that the cache takes by default, after the weights; the rest is for steps and graphs."""


def choose_device(identity: Identity, rank: int) -> torch.device:
    """The CPU, or this rank's GPU of the pod.

    Raises:
        ConfigurationError: a GPU is asked for or there, and this group can't run on it.
    """
    available = torch.cuda.is_available()
    kind, _, first = identity.device.partition(":")
    if identity.device == "cpu" or (kind == "auto" and not available):
        return torch.device("cpu")
    if kind not in {"auto", "cuda"} or not (first or "0").isdecimal():
        raise ConfigurationError(f"{Env.DEVICE} is {identity.device!r}: set it to auto, cpu, cuda or cuda:FIRST")
    number = int(first or 0) + rank
    count = torch.cuda.device_count() if available else 0
    if number >= count:
        raise ConfigurationError(
            f"rank {rank} finds {count} GPUs in its pod and needs {number + 1}: give the pod more, lower "
            f"parallelism.tensor, or set {Env.DEVICE} to cpu"
        )
    return torch.device("cuda", number)


def dtype_of(name: str, device: torch.device) -> torch.dtype:
    """The dtype that weights, cache and hidden states have on this device.

    Raises:
        ConfigurationError: no such dtype.
    """
    if name not in {"auto", *DTYPES}:
        raise ConfigurationError(f"model.dtype is {name!r}: set it to auto, {', '.join(DTYPES)}")
    return DTYPES.get(name, AUTO[device.type])


def kv_blocks(model: StageModel, identity: Identity, device: torch.device) -> int:
    """Blocks that fit `engine.kvCache` on this rank; by default, on a GPU, a share of what the weights left free.

    Raises:
        ConfigurationError: not even one block beside the padding block fits, or the cache's format can't be had.
    """
    if model.config.is_encoder:
        return LEAST_BLOCKS  # which nobody uses
    packed, kv_bytes = _checked_format(identity.kv_dtype, device), identity.kv_bytes
    one = block_bytes(model.stage.count, model.heads.kv_count, model.config.head_dim, model.dtype, packed)
    if not kv_bytes and not identity.kv_fraction and device.type == "cpu":
        return max(CPU_KV_BYTES // one, LEAST_BLOCKS)
    free = max(_free_bytes(device, identity.tensor) - reserved_bytes(device, model.dtype, packed), 0)
    asked = kv_bytes or int(free * (identity.kv_fraction / 100 or KV_FRACTION))
    if asked < 2 * one:
        what = f"engine.kvCache.bytes is {asked}" if kv_bytes else f"{asked} bytes are left for the cache"
        raise ConfigurationError(
            f"{what}, two blocks of {BLOCK_SIZE} tokens take {2 * one} on a rank: "
            + ("set it higher" if kv_bytes else "take a smaller model or a larger device")
        )
    return asked // one


def _free_bytes(device: torch.device, ranks: int) -> int:
    """Free memory of a GPU; of the host's, the part of one of a pod's ``ranks``."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    return int(lines["MemAvailable"].split()[0]) * 1024 // ranks


def _checked_format(name: str, device: torch.device) -> str:
    if name not in {"auto", *FORMATS}:
        raise ConfigurationError(f"engine.kvCache.dtype is {name!r}: set it to auto, {', '.join(FORMATS)}")
    if name == "fp8" and device.type == "cuda" and torch.cuda.get_device_capability(device) < FP8_CAPABILITY:
        raise ConfigurationError(
            f"engine.kvCache.dtype is fp8, but {torch.cuda.get_device_name(device)} can't compute with it (compute "
            f"capability {'.'.join(map(str, FP8_CAPABILITY))} or higher can): set it to int8 or auto"
        )
    return name
