"""Writes a rank's file, piece by piece, so that memory stays far below the size of any model."""

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from bireme_worker.checkpoints.manifest import Digest
from bireme_worker.checkpoints.safetensors_header import LENGTH_BYTES
from bireme_worker.checkpoints.safetensors_reader import DTYPES
from bireme_worker.checkpoints.safetensors_writer import ALIGNMENT
from bireme_worker.checkpoints.sharded_reader import PLACES
from bireme_worker.shards.blocks import Block, Unit

_NAMES = {dtype: name for name, dtype in DTYPES.items()}


def write_units(units: Sequence[Unit], path: Path, wrote: Callable[[int], None]) -> Digest:
    """Write a new file at ``path``; ``wrote`` is told how many bytes each time. Returns what the file must be."""
    header = _header([block for unit in units for block in unit.blocks])
    digest, size = hashlib.sha256(header), len(header)
    with path.open("wb") as file:
        file.write(header)
        for unit in units:
            for tensor in unit.tensors():
                data = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data
                file.write(data)
                digest.update(data)
                size += data.nbytes
                wrote(data.nbytes)
    return Digest(size, digest.hexdigest())


def total_bytes(units: Sequence[Unit]) -> int:
    """Bytes of all tensors."""
    return sum(block.nbytes for unit in units for block in unit.blocks)


def _header(blocks: Sequence[Block]) -> bytes:
    places = {block.key: [block.name, block.shape, block.offset] for block in blocks}
    described: dict[str, object] = {"__metadata__": {"format": "pt", PLACES: json.dumps(places)}}
    begin = 0
    for block in blocks:
        end = begin + block.nbytes
        described[block.key] = {"dtype": _NAMES[block.dtype], "shape": block.part, "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(described, separators=(",", ":")).encode()
    padded = text.ljust(-(-len(text) // ALIGNMENT) * ALIGNMENT)
    return len(padded).to_bytes(LENGTH_BYTES, "little") + padded
