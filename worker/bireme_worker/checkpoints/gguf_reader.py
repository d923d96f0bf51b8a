"""Reader of a GGUF file through the same interface as safetensors: Hugging Face names, shapes and row order.

Only the blocks that a slice touches are dequantized, a few rows at a time, straight into the result. llama.cpp
interleaves the two halves of each head in a Llama's query and key rows; here they are put back.
"""

import math
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

from bireme_worker.checkpoints.config import ModelConfig
from bireme_worker.checkpoints.errors import MissingTensor, UnexpectedTensor, UnsupportedCheckpoint, WrongShape
from bireme_worker.checkpoints.gguf_config import ROPE_FACTORS, hf_config, hf_generation_config
from bireme_worker.checkpoints.gguf_file import GGUFFile, GGUFTensor
from bireme_worker.checkpoints.gguf_names import hf_name
from bireme_worker.checkpoints.reader import TensorInfo, bounds

CHUNK_ELEMENTS = 1 << 18  # dequantized at once: 1 MiB, so that temporaries stay small beside any slice
PLAIN: Mapping[GGMLQuantizationType, torch.dtype] = {
    GGMLQuantizationType.F32: torch.float32,
    GGMLQuantizationType.F16: torch.float16,
    GGMLQuantizationType.BF16: torch.bfloat16,
}


class GGUFCheckpointReader:
    """A CheckpointReader over one GGUF file. Quantized tensors are read as float32."""

    def __init__(self, path: Path) -> None:
        with ExitStack() as on_failure:
            self._file = GGUFFile(path)
            on_failure.callback(self._file.close)
            self.config: Mapping[str, Any] = hf_config(self._file)
            self.generation_config: Mapping[str, Any] = hf_generation_config(self._file)
            self._head_dim = ModelConfig.parse(self.config, self.generation_config).head_dim
            self._interleaved = self.config["model_type"] == "llama"
            self._tensors = _by_hf_name(self._file)
            _check_heads(self._file, self._tensors, self._head_dim)
            on_failure.pop_all()
        self.tensors: Mapping[str, TensorInfo] = {
            name: TensorInfo(name, tensor.shape, PLAIN.get(tensor.kind, torch.float32), path)
            for name, tensor in self._tensors.items()
        }

    def read(self, name: str, slices: tuple[slice, ...] = ()) -> torch.Tensor:
        if name not in self._tensors:
            raise MissingTensor(f"the checkpoint has no tensor {name}")
        tensor, info = self._tensors[name], self.tensors[name]
        limits = bounds(info, slices)
        self._file.mapped.need(tensor.end)
        result = torch.empty([stop - start for start, stop in limits], dtype=info.dtype)
        if result.numel() == 0:
            return result
        matrix = result if result.dim() == 2 else result.unsqueeze(1)
        rows = self._stored_rows(name, *limits[0])
        self._fill(matrix, tensor, rows, limits[1] if len(limits) == 2 else (0, 1))
        return result

    def close(self) -> None:
        self._file.close()

    def _stored_rows(self, name: str, start: int, stop: int) -> npt.NDArray[np.int64]:
        """Where the file keeps the wanted rows: (head, half, i) is stored as (head, i, half)."""
        rows = np.arange(start, stop, dtype=np.int64)
        if not (self._interleaved and _is_rotated(name)):
            return rows
        head, inside = np.divmod(rows, self._head_dim)
        half, place = np.divmod(inside, self._head_dim // 2)
        stored: npt.NDArray[np.int64] = head * self._head_dim + place * 2 + half
        return stored

    def _fill(
        self, result: torch.Tensor, tensor: GGUFTensor, rows: npt.NDArray[np.int64], columns: tuple[int, int]
    ) -> None:
        block, size = GGML_QUANT_SIZES[tensor.kind]
        width = tensor.shape[1] if len(tensor.shape) == 2 else 1
        raw = np.frombuffer(self._file.mapped.data, np.uint8, tensor.end - tensor.begin, tensor.begin)
        first, last = columns[0] // block, math.ceil(columns[1] / block)
        blocks = raw.reshape(tensor.shape[0], width // block * size)[:, first * size : last * size]
        inner = slice(columns[0] - first * block, columns[1] - first * block)
        step = max(CHUNK_ELEMENTS // ((last - first) * block), 1)
        for at in range(0, len(rows), step):
            chosen = np.ascontiguousarray(blocks[rows[at : at + step]])
            result[at : at + step] = _decode(chosen, tensor.kind)[:, inner]


def _is_rotated(name: str) -> bool:
    return ".q_proj." in name or ".k_proj." in name


def _check_heads(file: GGUFFile, tensors: Mapping[str, GGUFTensor], head_dim: int) -> None:
    for name, tensor in tensors.items():
        if _is_rotated(name) and tensor.shape[0] % head_dim:
            raise WrongShape(
                f"{file.path}: {tensor.name} has {tensor.shape[0]} rows, no multiple of head_dim {head_dim}"
            )


def _decode(raw: npt.NDArray[np.uint8], kind: GGMLQuantizationType) -> torch.Tensor:
    if kind in PLAIN:
        return torch.from_numpy(raw).view(PLAIN[kind])
    return torch.from_numpy(dequantize(raw, kind))


def _by_hf_name(file: GGUFFile) -> dict[str, GGUFTensor]:
    named: dict[str, GGUFTensor] = {}
    for tensor in file.tensors.values():
        if tensor.name == ROPE_FACTORS:
            continue  # already in config as rope_scaling
        try:
            name = hf_name(tensor.name)
        except UnexpectedTensor as error:
            raise UnexpectedTensor(f"{file.path}: {error}") from None
        _check_readable(file, tensor)
        named[name] = tensor
    return named


def _check_readable(file: GGUFFile, tensor: GGUFTensor) -> None:
    if len(tensor.shape) not in {1, 2} or (len(tensor.shape) == 1 and tensor.kind not in PLAIN):
        raise UnsupportedCheckpoint(f"{file.path}: {tensor.name} is {tensor.kind.name} of shape {tensor.shape}")
    if tensor.kind in PLAIN:
        return
    try:
        dequantize(np.zeros((1, GGML_QUANT_SIZES[tensor.kind][1]), np.uint8), tensor.kind)
    except NotImplementedError:
        raise UnsupportedCheckpoint(
            f"{file.path}: {tensor.name} is {tensor.kind.name}, which cannot be dequantized"
        ) from None
