"""The header of a GGUF file: metadata and the place of each tensor, checked in full before a byte is served.

The gguf package makes one numpy view per vocabulary entry, 150 MB and a second and a half for SmolLM2, and reports a
cut file as a failed reshape. So the header is walked here; block sizes and dequantization stay the package's. No
torch.
"""

import math
import struct
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType

from bireme_worker.checkpoints.errors import CorruptFile, DuplicateTensor, UnsupportedCheckpoint
from bireme_worker.checkpoints.mapped_file import MappedFile

T = TypeVar("T")

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_DIMENSIONS = 4

_SCALARS: Mapping[GGUFValueType, str] = {
    GGUFValueType.UINT8: "B",
    GGUFValueType.INT8: "b",
    GGUFValueType.UINT16: "H",
    GGUFValueType.INT16: "h",
    GGUFValueType.UINT32: "I",
    GGUFValueType.INT32: "i",
    GGUFValueType.FLOAT32: "f",
    GGUFValueType.BOOL: "?",
    GGUFValueType.UINT64: "Q",
    GGUFValueType.INT64: "q",
    GGUFValueType.FLOAT64: "d",
}


@dataclass(frozen=True, slots=True)
class GGUFTensor:
    """One tensor; ``shape`` is rows first, ``begin`` and ``end`` count from the start of the file."""

    name: str
    kind: GGMLQuantizationType
    shape: tuple[int, ...]
    begin: int
    end: int


class GGUFFile:
    """An open GGUF file: ``metadata`` (plain Python values) and ``tensors`` by their GGUF names."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with ExitStack() as on_failure:
            self.mapped = MappedFile(path)
            on_failure.callback(self.mapped.close)
            cursor = _Cursor(self.mapped)
            _check_magic(cursor)
            tensor_count, value_count = cursor.scalars("QQ")
            self.metadata = _metadata(cursor, value_count)
            described = [_tensor(cursor) for _ in range(tensor_count)]
            self.tensors = _place(cursor, described, self.metadata.get("general.alignment", DEFAULT_ALIGNMENT))
            on_failure.pop_all()

    def need(self, key: str, kind: type) -> Any:
        """Return one value of the metadata, or say that it is missing."""
        value = self.metadata.get(key)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise UnsupportedCheckpoint(f"{self.path}: {key} must be {kind.__name__}, it is {_short(value)}")
        return value

    def get(self, key: str, default: T) -> T:
        """Return one value, of the type of ``default``, which stands in when the file does not say."""
        value: T = self.need(key, type(default)) if key in self.metadata else default
        return value

    def close(self) -> None:
        self.mapped.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Cursor:
    """A position in the header that never passes the end of the file."""

    def __init__(self, file: MappedFile) -> None:
        self.file = file
        self.position = 0

    def bytes(self, count: int) -> bytes:
        start, self.position = self.position, self.position + count
        if self.position > self.file.size:
            self.file.need(self.position)
        return self.file.data[start : self.position]

    def scalars(self, letters: str) -> tuple[Any, ...]:
        return struct.unpack("<" + letters, self.bytes(struct.calcsize("<" + letters)))

    def string(self) -> str:
        try:
            return self.bytes(self.scalars("Q")[0]).decode()
        except UnicodeDecodeError as error:
            raise CorruptFile(f"{self.file.path} has a string that is not UTF-8 at byte {self.position}") from error


def _check_magic(cursor: _Cursor) -> None:
    magic = cursor.bytes(len(MAGIC))
    if magic != MAGIC:
        raise CorruptFile(f"{cursor.file.path} begins with {magic!r}, not with {MAGIC!r}: it is no GGUF file")
    (version,) = cursor.scalars("I")
    if version not in VERSIONS:
        raise UnsupportedCheckpoint(
            f"{cursor.file.path} is GGUF version {version}, supported are little-endian 2 and 3"
        )


def _metadata(cursor: _Cursor, count: int) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for _ in range(count):
        key = cursor.string()
        if key in values:
            raise CorruptFile(f"{cursor.file.path} has the metadata key {key} twice")
        values[key] = _value(cursor, _kind(cursor))
    return values


def _kind(cursor: _Cursor) -> GGUFValueType:
    (number,) = cursor.scalars("I")
    try:
        return GGUFValueType(number)
    except ValueError:
        raise CorruptFile(
            f"{cursor.file.path} has metadata of unknown type {number} at byte {cursor.position}"
        ) from None


def _value(cursor: _Cursor, kind: GGUFValueType) -> Any:
    if kind is GGUFValueType.STRING:
        return cursor.string()
    if kind is not GGUFValueType.ARRAY:
        return cursor.scalars(_SCALARS[kind])[0]
    inner = _kind(cursor)
    (count,) = cursor.scalars("Q")
    if inner is GGUFValueType.STRING:
        return [cursor.string() for _ in range(count)]
    if inner is GGUFValueType.ARRAY:
        raise UnsupportedCheckpoint(f"{cursor.file.path} has an array of arrays in its metadata")
    letter = _SCALARS[inner]
    return list(struct.unpack(f"<{count}{letter}", cursor.bytes(count * struct.calcsize("<" + letter))))


def _tensor(cursor: _Cursor) -> GGUFTensor:
    """Read one description; ``begin`` and ``end`` still count from the start of the data."""
    name = cursor.string()
    (dimensions,) = cursor.scalars("I")
    if dimensions > MAX_DIMENSIONS:
        raise CorruptFile(f"{cursor.file.path}: {name} has {dimensions} dimensions, the limit is {MAX_DIMENSIONS}")
    shape = tuple(reversed(cursor.scalars("Q" * dimensions)))
    number, begin = cursor.scalars("IQ")
    try:
        kind = GGMLQuantizationType(number)
    except ValueError:
        raise UnsupportedCheckpoint(f"{cursor.file.path}: {name} has unknown quantization type {number}") from None
    block, size = GGML_QUANT_SIZES[kind]
    if shape and shape[-1] % block:
        raise CorruptFile(f"{cursor.file.path}: {name} has rows of {shape[-1]}, no multiple of {kind.name}'s {block}")
    return GGUFTensor(name, kind, shape, begin, begin + math.prod(shape) // block * size)


def _place(cursor: _Cursor, described: list[GGUFTensor], alignment: Any) -> dict[str, GGUFTensor]:
    path = cursor.file.path
    if not isinstance(alignment, int) or alignment < 1:
        raise CorruptFile(f"{path} has general.alignment {alignment!r}, it must be a positive number")
    start = -(-cursor.position // alignment) * alignment
    placed: dict[str, GGUFTensor] = {}
    for tensor in described:
        if tensor.name in placed:
            raise DuplicateTensor(f"{path} has {tensor.name} twice")
        placed[tensor.name] = GGUFTensor(
            tensor.name, tensor.kind, tensor.shape, start + tensor.begin, start + tensor.end
        )
    cursor.file.need(max((tensor.end for tensor in placed.values()), default=cursor.position))
    return placed


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 80 else f"{text[:80]}…"
