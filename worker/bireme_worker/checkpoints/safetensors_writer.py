"""Write one safetensors file tensor by tensor, so that a model of any size passes through a few megabytes of memory.

The safetensors library wants all tensors at once, in memory.
"""

import json
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch

from bireme_worker.checkpoints.reader import CheckpointReader, TensorInfo
from bireme_worker.checkpoints.safetensors_header import LENGTH_BYTES

NAMES = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
CHUNK_BYTES = 16 << 20
ALIGNMENT = 8


def write_safetensors(
    reader: CheckpointReader,
    tensors: Sequence[TensorInfo],
    path: Path,
    dtype: torch.dtype,
    progress: Callable[[int, int], None],
) -> None:
    """Copy ``tensors`` as ``dtype`` into a new file at ``path``."""
    total = sum(math.prod(info.shape) for info in tensors) * dtype.itemsize
    done = 0
    with path.open("wb") as file:
        file.write(_header(tensors, dtype))
        for info in tensors:
            for chunk in _chunks(reader, info):
                data = chunk.to(dtype).reshape(-1).view(torch.uint8).numpy()
                file.write(data.data)
                done += data.nbytes
                progress(done, total)


def _header(tensors: Sequence[TensorInfo], dtype: torch.dtype) -> bytes:
    described: dict[str, object] = {"__metadata__": {"format": "pt"}}
    begin = 0
    for info in tensors:
        end = begin + math.prod(info.shape) * dtype.itemsize
        described[info.name] = {"dtype": NAMES[dtype], "shape": info.shape, "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(described, separators=(",", ":")).encode()
    padded = text.ljust(-(-len(text) // ALIGNMENT) * ALIGNMENT)
    return len(padded).to_bytes(LENGTH_BYTES, "little") + padded


def _chunks(reader: CheckpointReader, info: TensorInfo) -> Iterator[torch.Tensor]:
    """Yield the tensor in runs of whole rows."""
    row = math.prod(info.shape[1:]) * info.dtype.itemsize
    step = max(CHUNK_BYTES // max(row, 1), 1)
    for start in range(0, info.shape[0], step):
        yield reader.read(info.name, (slice(start, min(start + step, info.shape[0])),))
