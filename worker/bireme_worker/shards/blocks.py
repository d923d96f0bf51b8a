"""What the file of one rank holds: exactly the slices that the rank reads, quantized on the way if asked to.

The same description serves `bireme convert` and the shard cache, and a load reads from either what it would have read
from the whole checkpoint.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import torch

from bireme_worker.checkpoints.quantization import Method, Scheme
from bireme_worker.checkpoints.reader import CheckpointReader
from bireme_worker.models.registry import StageModel
from bireme_worker.models.weight import Piece
from bireme_worker.quant.load import rounded
from bireme_worker.quant.stored import Stored, scheme_of, stored

CHUNK_BYTES: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class Block:
    """One tensor of a rank's file: a part of tensor ``name`` of ``shape`` from ``offset`` on."""

    key: str
    name: str
    shape: tuple[int, ...]
    offset: tuple[int, ...]
    part: tuple[int, ...]
    dtype: torch.dtype

    @property
    def nbytes(self) -> int:
        """Bytes in the file."""
        return torch.Size(self.part).numel() * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class Unit:
    """Blocks that come into being together; ``tensors`` yields their contents in order, in pieces of any length."""

    blocks: tuple[Block, ...]
    tensors: Callable[[], Iterator[torch.Tensor]]


def rank_units(
    model: StageModel, reader: CheckpointReader, rounding: Scheme | None, dtype: torch.dtype | None
) -> list[Unit]:
    """All that the rank of ``model`` keeps of a checkpoint; ``dtype`` None keeps that of plain tensors.

    Raises:
        CheckpointError, ConfigurationError: an edge of the shard is inside a quantization group.
    """
    units: list[Unit] = []
    seen: dict[str, set[tuple[tuple[int, int], ...]]] = {}
    for weight in model.weights():
        held = scheme_of(weight, model.config.quantization, reader.tensors)
        for piece in weight.pieces:
            if held is None and rounding is not None and weight.quantizes:
                units.append(_rounded(piece, rounding, reader))
                continue
            for one in stored(piece, held, reader.tensors):
                spans = _whole(one)
                before = seen.setdefault(one.name, set())
                if _key(spans) not in before:  # tied embeddings are read twice
                    units.append(_copied(one, spans, len(before), reader, None if held else dtype))
                    before.add(_key(spans))
    return units


def _key(spans: tuple[slice, ...]) -> tuple[tuple[int, int], ...]:
    return tuple((span.start, span.stop) for span in spans)


def _whole(one: Stored) -> tuple[slice, ...]:
    rest = one.shape[len(one.slices) :]
    return (*one.slices, *(slice(0, size) for size in rest))


def _block(one: Stored, spans: tuple[slice, ...], count: int, dtype: torch.dtype) -> Block:
    key = f"{one.name}#{count}" if count else one.name
    offset, part = tuple(span.start for span in spans), tuple(span.stop - span.start for span in spans)
    return Block(key, one.name, one.shape, offset, part, dtype)


def _copied(
    one: Stored, spans: tuple[slice, ...], count: int, reader: CheckpointReader, dtype: torch.dtype | None
) -> Unit:
    kept = dtype or reader.tensors[one.name].dtype
    return Unit(
        (_block(one, spans, count, kept),), lambda: (part.to(kept) for part in _chunks(reader, one.name, spans))
    )


def _chunks(reader: CheckpointReader, name: str, spans: tuple[slice, ...]) -> Iterator[torch.Tensor]:
    """Runs of rows."""
    if not spans:
        yield reader.read(name)
        return
    rows, *rest = spans
    width = torch.Size(span.stop - span.start for span in rest).numel() * reader.tensors[name].dtype.itemsize
    step = max(CHUNK_BYTES // max(width, 1), 1)
    for begin in range(rows.start, rows.stop, step):
        yield reader.read(name, (slice(begin, min(begin + step, rows.stop)), *rest))


def _rounded(piece: Piece, rounding: Scheme, reader: CheckpointReader) -> Unit:
    straight = piece if not piece.transposed else Piece(piece.source, piece.shape[::-1], piece.slices[::-1], piece.at)
    codes, scales = stored(straight, rounding, None)
    fp8 = rounding.method is Method.FP8
    dtypes = (torch.float8_e4m3fn, torch.float32) if fp8 else (torch.uint8, torch.float16)
    blocks = tuple(_block(one, _whole(one), 0, dtype) for one, dtype in zip((codes, scales), dtypes, strict=True))
    return Unit(blocks, lambda: iter(rounded(piece, rounding, reader).values()))
