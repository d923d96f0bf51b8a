"""Reader of a Hugging Face directory: config.json beside model.safetensors, or beside an index and its files.

The index is followed exactly. What it names must be there once, and nothing else may be in its files: a tensor that
silently stays random, or comes from a stale file, answers fluently and wrongly.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from bireme_worker.checkpoints.config import read_json, read_optional_json
from bireme_worker.checkpoints.errors import MissingTensor
from bireme_worker.checkpoints.pooling import with_pooling
from bireme_worker.checkpoints.reader import TensorInfo, bounds
from bireme_worker.checkpoints.safetensors_index import open_headers

DTYPES: Mapping[str, torch.dtype] = {
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "U8": torch.uint8,
    "I32": torch.int32,
}


class SafetensorsReader:
    """A CheckpointReader over one directory."""

    def __init__(self, directory: Path) -> None:
        self.config: Mapping[str, Any] = with_pooling(directory, read_json(directory / "config.json"))
        self.generation_config: Mapping[str, Any] = read_optional_json(directory / "generation_config.json")
        self._files, headers = open_headers(directory)
        self._entries = {name: (file, entry) for file, header in headers.items() for name, entry in header.items()}
        self.tensors: Mapping[str, TensorInfo] = {
            name: TensorInfo(name, entry.shape, DTYPES[entry.dtype], directory / file)
            for name, (file, entry) in self._entries.items()
        }

    def read(self, name: str, slices: tuple[slice, ...] = ()) -> torch.Tensor:
        if name not in self._entries:
            raise MissingTensor(f"the checkpoint has no tensor {name}")
        info = self.tensors[name]
        wanted = tuple(slice(*pair) for pair in bounds(info, slices))
        file_name, entry = self._entries[name]
        file = self._files[file_name]
        file.need(entry.end)
        if entry.begin == entry.end:
            return torch.empty(info.shape, dtype=info.dtype)[wanted]
        count = (entry.end - entry.begin) // info.dtype.itemsize
        flat = torch.frombuffer(file.data, dtype=info.dtype, count=count, offset=entry.begin)
        return flat.view(info.shape)[wanted].clone(memory_format=torch.contiguous_format)

    def close(self) -> None:
        for file in self._files.values():
            file.close()
