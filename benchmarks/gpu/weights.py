"""Random weights of a named shape: drawn on the device when they are read, or written as a checkpoint.

Each tensor is drawn from its name's seed, so every rank that reads a slice of it sees the same values. A config.json
with ``quantization_config`` (``shapes.quantized``) gives quantized tensors: nothing is ever held in bf16.
"""

import json
import threading
import zlib
from collections.abc import Mapping
from fcntl import LOCK_EX, flock
from pathlib import Path
from typing import Any

import torch

from bireme_worker.checkpoints.config import ModelConfig
from bireme_worker.checkpoints.quantization import parse_quantization
from bireme_worker.checkpoints.reader import TensorInfo, bounds
from bireme_worker.checkpoints.safetensors_writer import write_safetensors
from bireme_worker.models.load import stored_tensors
from bireme_worker.quant.matrix import FP8, FP8_MAX
from bireme_worker.text.token_bytes import BYTE_LEVEL

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
FP8_SPREAD = 100.0
"""Standard deviation of fp8 values: the largest of millions is near their greatest."""
_DONE = "written"


class RandomReader:
    """A checkpoint that is nowhere: its tensors lie on the device where they are drawn."""

    def __init__(self, config: Mapping[str, Any], seed: int = 0) -> None:
        self.config = config
        self.generation_config: Mapping[str, Any] = {}
        self._dtype = getattr(torch, config["torch_dtype"])
        self._seed = seed
        self.tensors: Mapping[str, TensorInfo] = {
            one.name: TensorInfo(
                one.name, one.shape, self._dtype if len(one.dtypes) > 1 else next(iter(one.dtypes)), Path()
            )
            for one in stored_tensors(ModelConfig.parse(config))
        }
        self._lock = threading.Lock()
        self._last: tuple[str, torch.Tensor] = ("", torch.empty(0))

    def read(self, name: str, slices: tuple[slice, ...] = ()) -> torch.Tensor:
        """As a checkpoint's, but on the device."""
        with self._lock:  # loaders read in several threads
            if self._last[0] != name:
                self._last = (name, self._draw(name))
            drawn = self._last[1]
        return drawn[tuple(slice(*one) for one in bounds(self.tensors[name], slices))]

    def close(self) -> None:
        """Forget the last tensor."""
        self._last = ("", torch.empty(0))

    def _draw(self, name: str) -> torch.Tensor:
        generator = torch.Generator(DEVICE).manual_seed(zlib.crc32(name.encode()) + self._seed)
        shape, dtype = self.tensors[name].shape, self.tensors[name].dtype
        if dtype == torch.uint8:
            return torch.randint(0, 256, shape, generator=generator, device=DEVICE, dtype=dtype)
        if dtype == FP8:
            half = torch.randn(shape, generator=generator, device=DEVICE, dtype=torch.float16)
            return half.mul_(FP8_SPREAD).clamp_(-FP8_MAX, FP8_MAX).to(FP8)  # beyond its range is NaN
        if name.endswith((".weight_scale", ".scales")):
            return self._scales(name, generator)
        drawn: torch.Tensor = torch.randn(shape, generator=generator, device=DEVICE, dtype=self._dtype)
        return drawn.mul_(0.1).add_(1) if len(shape) == 1 else drawn.mul_(shape[1] ** -0.5)

    def _scales(self, name: str, generator: torch.Generator) -> torch.Tensor:
        """Such that the products have the size of their inputs."""
        values = self.tensors[name.replace(".weight_scale", ".weight").replace(".scales", ".codes")]
        scheme = parse_quantization(self.config)
        assert scheme is not None
        inputs = values.shape[1] * (1 if values.dtype == FP8 else 8 // scheme.bits)
        spread = FP8_SPREAD if values.dtype == FP8 else (1 << scheme.bits) / 12**0.5
        drawn = torch.rand(self.tensors[name].shape, generator=generator, device=DEVICE)
        return drawn.add_(0.5).mul_(inputs**-0.5 / spread).to(torch.float32 if values.dtype == FP8 else torch.float16)


class _OnHost(RandomReader):
    def read(self, name: str, slices: tuple[slice, ...] = ()) -> torch.Tensor:
        return super().read(name, slices).cpu()


def write_checkpoint(config: Mapping[str, Any], directory: Path, seed: int = 0) -> Path:
    """A checkpoint with a tokenizer at ``directory``, unless it lies there already; one process writes at a time."""
    directory.mkdir(exist_ok=True, parents=True)
    with (directory / "lock").open("w") as lock:
        flock(lock, LOCK_EX)
        if not (directory / _DONE).exists():
            reader = _OnHost(config, seed)
            tensors = list(reader.tensors.values())
            write_safetensors(reader, tensors, directory / "model.safetensors", tensors[0].dtype, lambda *_: None)
            describe(config, directory)
            (directory / _DONE).touch()
            reader.close()
            if DEVICE == "cuda":
                torch.cuda.empty_cache()
    return directory


def describe(config: Mapping[str, Any], directory: Path) -> Path:
    """A checkpoint without weights."""
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "tokenizer.json").write_text(json.dumps(_tokenizer(config["vocab_size"])))
    return directory


def _tokenizer(vocabulary: int) -> dict[str, Any]:
    """Bytes, and words `t300` and so on, so that every id has a text."""
    spellings = [*BYTE_LEVEL, *(f"t{number}" for number in range(len(BYTE_LEVEL), vocabulary))]
    bytes_only = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    return {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": bytes_only,
        "decoder": bytes_only,
        "model": {"type": "BPE", "vocab": {text: number for number, text in enumerate(spellings)}, "merges": []},
    }
