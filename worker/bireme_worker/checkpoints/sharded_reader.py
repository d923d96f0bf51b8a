"""Reader of files that hold parts of tensors, through the interface of whole checkpoints.

Each file's header says where in its tensor a part lies. A slice that lies inside one part is one copy, which is what a
rank does whose layout is that of the files; any other is put together, which is how layouts are changed.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

from bireme_worker.checkpoints.config import read_json, read_optional_json
from bireme_worker.checkpoints.errors import CorruptFile, MissingTensor
from bireme_worker.checkpoints.manifest import Manifest
from bireme_worker.checkpoints.mapped_file import MappedFile
from bireme_worker.checkpoints.reader import TensorInfo, bounds
from bireme_worker.checkpoints.safetensors_header import Entry, read_header, read_metadata
from bireme_worker.checkpoints.safetensors_reader import DTYPES

PLACES: Final = "bireme"
"""Key of the header's metadata: for each stored part the name of its tensor, the whole shape, and its offset."""

Bounds = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class _Part:
    file: MappedFile
    entry: Entry
    offset: tuple[int, ...]

    def inside(self, wanted: Bounds) -> Bounds:
        """What of ``wanted`` lies in this part, counted in the whole tensor; empty spans where nothing does."""
        ends = [at + size for at, size in zip(self.offset, self.entry.shape, strict=True)]
        cut = [(max(low, at), min(high, end)) for (low, high), at, end in zip(wanted, self.offset, ends, strict=True)]
        return tuple((low, max(low, high)) for low, high in cut)

    def view(self, wanted: Bounds) -> torch.Tensor:
        """The file's own memory."""
        self.file.need(self.entry.end)
        dtype = DTYPES[self.entry.dtype]
        count = (self.entry.end - self.entry.begin) // dtype.itemsize
        if count == 0:
            return torch.empty(self.entry.shape, dtype=dtype)
        flat = torch.frombuffer(self.file.data, dtype=dtype, count=count, offset=self.entry.begin)
        cuts = [slice(low - at, high - at) for (low, high), at in zip(wanted, self.offset, strict=True)]
        return flat.view(self.entry.shape)[tuple(cuts)]


class PartsReader:
    """A CheckpointReader over ``files``."""

    def __init__(self, config: Mapping[str, Any], generation_config: Mapping[str, Any], files: Sequence[Path]) -> None:
        self.config = config
        self.generation_config = generation_config
        self._files: list[MappedFile] = []
        self._parts: dict[str, list[_Part]] = {}
        found: dict[str, TensorInfo] = {}
        with ExitStack() as on_failure:
            on_failure.callback(self.close)
            for path in files:
                self._files.append(MappedFile(path))
                self._take(self._files[-1], found)
            on_failure.pop_all()
        self.tensors: Mapping[str, TensorInfo] = found

    def read(self, name: str, slices: tuple[slice, ...] = ()) -> torch.Tensor:
        if name not in self._parts:
            raise MissingTensor(f"the checkpoint has no tensor {name}")
        info = self.tensors[name]
        wanted = bounds(info, slices)
        for part in self._parts[name]:
            if part.inside(wanted) == wanted:
                return part.view(wanted).clone(memory_format=torch.contiguous_format)
        return self._joined(info, wanted)

    def close(self) -> None:
        for file in self._files:
            file.close()

    def _joined(self, info: TensorInfo, wanted: Bounds) -> torch.Tensor:
        shape = [high - low for low, high in wanted]
        result, filled = torch.empty(shape, dtype=info.dtype), torch.zeros(shape, dtype=torch.bool)
        for part in self._parts[info.name]:
            inside = part.inside(wanted)
            if all(high > low for low, high in inside):
                place = tuple(slice(low - at, high - at) for (low, high), (at, _) in zip(inside, wanted, strict=True))
                result[place] = part.view(inside)
                filled[place] = True
        if not filled.all():
            raise MissingTensor(f"{info.file.parent} lacks a part of {info.name} within {wanted}: convert again")
        return result

    def _take(self, file: MappedFile, found: dict[str, TensorInfo]) -> None:
        header = read_header(file)
        try:
            places = json.loads(read_metadata(file)[PLACES])
            known = {key: (str(name), tuple(shape), tuple(at)) for key, (name, shape, at) in places.items()}
            entries = [(entry, *known[key]) for key, entry in header.items()]
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptFile(f"{file.path} was not written by `bireme convert` ({error!r}): convert again") from error
        for entry, name, shape, offset in entries:
            info = TensorInfo(name, shape, DTYPES[entry.dtype], file.path)
            before = found.setdefault(name, info)
            fits = len(shape) == len(offset) == len(entry.shape) and all(
                at >= 0 and at + size <= whole for at, size, whole in zip(offset, entry.shape, shape, strict=True)
            )
            if not fits or (before.shape, before.dtype) != (info.shape, info.dtype):
                raise CorruptFile(f"{file.path}: {name} has parts that do not fit together: convert again")
            self._parts.setdefault(name, []).append(_Part(file, entry, offset))


class ShardedReader(PartsReader):
    """The same over a directory that `bireme convert` wrote."""

    def __init__(self, directory: Path) -> None:
        self.manifest = Manifest.read(directory)
        super().__init__(
            read_json(directory / "config.json"),
            read_optional_json(directory / "generation_config.json"),
            [directory / name for name in self.manifest.files],
        )
