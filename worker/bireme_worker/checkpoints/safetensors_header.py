"""The header of a safetensors file, checked in full before a byte of the file is served.

The safetensors library reports a broken file without its name and numbers; an operator needs both to know what to
copy. Format: 8 bytes little-endian length, that many bytes of JSON, then the tensors without holes or overlaps.
"""

import json
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bireme_worker.checkpoints.errors import CorruptFile, DuplicateTensor, UnsupportedCheckpoint
from bireme_worker.checkpoints.mapped_file import MappedFile

ITEM_SIZES: Mapping[str, int] = {"F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "U8": 1, "I32": 4}
LENGTH_BYTES = 8
MAX_HEADER_BYTES = 100_000_000  # the limit of the safetensors library itself


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor; ``begin`` and ``end`` count from the start of the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


def read_header(file: MappedFile) -> dict[str, Entry]:
    """Return the tensors of one file.

    Raises:
        TruncatedFile, CorruptFile, DuplicateTensor, UnsupportedCheckpoint: the file is not served at all.
    """
    file.need(LENGTH_BYTES)
    length = int.from_bytes(file.data[:LENGTH_BYTES], "little")
    if length > MAX_HEADER_BYTES:
        raise CorruptFile(f"{file.path} announces a header of {length} bytes, the limit is {MAX_HEADER_BYTES}")
    start = LENGTH_BYTES + length
    file.need(start)
    described = _parse(file.path, file.data[LENGTH_BYTES:start])
    entries = [_entry(file.path, name, value, start) for name, value in described.items() if name != "__metadata__"]
    _check_layout(file, entries, start)
    return {entry.name: entry for entry in entries}


def read_metadata(file: MappedFile) -> Mapping[str, str]:
    """Return the free texts of a header that `read_header` has accepted."""
    length = int.from_bytes(file.data[:LENGTH_BYTES], "little")
    metadata = _parse(file.path, file.data[LENGTH_BYTES : LENGTH_BYTES + length]).get("__metadata__", {})
    return metadata if isinstance(metadata, dict) else {}


def _parse(path: Path, raw: bytes) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        twice = sorted(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
        if twice:
            raise DuplicateTensor(f"{path} has {', '.join(twice)} twice in its header")
        return dict(pairs)

    try:
        header = json.loads(raw, object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise CorruptFile(f"{path} has no safetensors header ({error}): copy it again") from error
    if not isinstance(header, dict):
        raise CorruptFile(f"{path} has a header that is not a JSON object: copy it again")
    return header


def _entry(path: Path, name: str, value: Any, start: int) -> Entry:
    match value:
        case {"dtype": str(dtype), "shape": [*shape], "data_offsets": [int(begin), int(end)]} if _sizes(shape):
            pass
        case _:
            raise CorruptFile(f"{path} has a header without dtype, shape and data_offsets for {name}: copy it again")
    if dtype not in ITEM_SIZES:
        raise UnsupportedCheckpoint(f"{path}: {name} is of type {dtype}, supported are {', '.join(ITEM_SIZES)}")
    needed = math.prod(shape) * ITEM_SIZES[dtype]
    if begin < 0 or end - begin != needed:
        raise CorruptFile(f"{path}: {name} needs {needed} bytes, its header gives it {begin}:{end}: copy it again")
    return Entry(name, dtype, tuple(shape), start + begin, start + end)


def _sizes(shape: list[Any]) -> bool:
    return all(isinstance(size, int) and not isinstance(size, bool) and size >= 0 for size in shape)


def _check_layout(file: MappedFile, entries: list[Entry], start: int) -> None:
    position = start
    for entry in sorted(entries, key=lambda entry: (entry.begin, entry.end)):
        if entry.begin != position:
            raise CorruptFile(f"{file.path}: {entry.name} begins at {entry.begin}, the one before ends at {position}")
        position = entry.end
    file.need(position)
    if file.size > position:
        raise CorruptFile(f"{file.path} is {file.size} bytes, its header describes {position}: copy it again")
