"""Reader of a Hugging Face directory: config.json beside model.safetensors, or beside an index and its files.

The index is followed exactly. What it names must be there once, and nothing else may be in its files: a tensor that
silently stays random, or comes from a stale file, answers fluently and wrongly.
"""

from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from bireme_worker.checkpoints.config import read_json, read_optional_json
from bireme_worker.checkpoints.errors import CorruptFile, DuplicateTensor, MissingFile, MissingTensor, UnexpectedTensor
from bireme_worker.checkpoints.mapped_file import MappedFile
from bireme_worker.checkpoints.reader import TensorInfo, bounds
from bireme_worker.checkpoints.safetensors_header import Entry, read_header

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
DTYPES: Mapping[str, torch.dtype] = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


class SafetensorsReader:
    """A CheckpointReader over one directory."""

    def __init__(self, directory: Path) -> None:
        self.config: Mapping[str, Any] = read_json(directory / "config.json")
        self.generation_config: Mapping[str, Any] = read_optional_json(directory / "generation_config.json")
        index = None if (directory / SINGLE).exists() else _weight_map(directory / INDEX)
        names = [SINGLE] if index is None else sorted(set(index.values()))
        _check_present(directory, names)
        with ExitStack() as on_failure:
            self._files: dict[str, MappedFile] = {}
            on_failure.callback(self.close)
            for name in names:
                self._files[name] = MappedFile(directory / name)
            headers = {name: read_header(file) for name, file in self._files.items()}
            _check_unique(directory, headers)
            if index is not None:
                _check_index(directory / INDEX, index, headers)
            on_failure.pop_all()
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


def _weight_map(path: Path) -> dict[str, str]:
    weight_map = read_json(path).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CorruptFile(f"{path} has no weight_map: copy it again")
    for tensor, file in weight_map.items():
        if not isinstance(file, str) or Path(file).name != file:
            raise CorruptFile(f"{path} places {tensor} in {file!r}, which is no file name in its directory")
    return weight_map


def _check_present(directory: Path, names: list[str]) -> None:
    missing = [name for name in names if not (directory / name).is_file()]
    if missing:
        raise MissingFile(f"{directory} lacks {', '.join(missing)}: copy the checkpoint again")


def _check_unique(directory: Path, headers: Mapping[str, Mapping[str, Entry]]) -> None:
    counts = Counter(name for header in headers.values() for name in header)
    twice = sorted(name for name, count in counts.items() if count > 1)
    if twice:
        files = sorted(file for file, header in headers.items() if twice[0] in header)
        raise DuplicateTensor(f"{directory}: {', '.join(twice)} is in {' and in '.join(files)}: remove the stale file")


def _check_index(path: Path, index: Mapping[str, str], headers: Mapping[str, Mapping[str, Entry]]) -> None:
    absent = sorted(f"{name} in {file}" for name, file in index.items() if name not in headers[file])
    if absent:
        raise MissingTensor(f"{path} places {', '.join(absent)}, but it is not there: copy that file again")
    unknown = sorted(name for header in headers.values() for name in header if name not in index)
    if unknown:
        raise UnexpectedTensor(
            f"{path} does not name {', '.join(unknown)}, but its files have it: copy all files again"
        )
