"""The least memory that a checkpoint's weights can take, from headers alone. No torch."""

import math
from collections.abc import Iterator
from pathlib import Path

from bireme_worker.checkpoints.gguf_file import GGUFFile
from bireme_worker.checkpoints.layout import find_gguf
from bireme_worker.checkpoints.manifest import MANIFEST, Manifest
from bireme_worker.checkpoints.safetensors_index import open_headers

_FLOATS = frozenset({"F32", "F16", "BF16"})
_MATRIX = 2


def least_bytes(path: Path, wide: int, bits: int = 0) -> int:
    """Bytes of the whole model once, floats being held in ``wide`` bytes, matrices in ``bits`` if that is not 0.

    Raises:
        CheckpointError: a file is missing, cut or corrupt.
    """
    if (path / MANIFEST).is_file():
        return sum(file.bytes for file in Manifest.read(path).files.values())
    return sum(_bytes(shape, held, wide, bits) for shape, held in _tensors(path))


def _bytes(shape: tuple[int, ...], held: int, wide: int, bits: int) -> int:
    count = math.prod(shape)
    if held:
        return count * held
    return count * bits // 8 if bits and len(shape) >= _MATRIX else count * wide


def _tensors(path: Path) -> Iterator[tuple[tuple[int, ...], int]]:
    """Shape of each tensor, and the bytes of an element where these are kept as they are."""
    gguf = find_gguf(path)
    if gguf is not None:
        with GGUFFile(gguf) as file:
            yield from ((tensor.shape, 0) for tensor in file.tensors.values())
        return
    files, headers = open_headers(path)
    for opened in files.values():
        opened.close()
    for header in headers.values():
        for entry in header.values():
            kept = 0 if entry.dtype in _FLOATS else (entry.end - entry.begin) // max(math.prod(entry.shape), 1)
            yield entry.shape, kept
