"""Fills a rank's weights from a checkpoint: each tensor accounted for, each rank reading only its slices.

Reads go a few megabytes at a time straight into the final memory, so a load needs no second copy of anything.
"""

from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from typing import Final

import torch

from bireme_worker.checkpoints.accounting import account
from bireme_worker.checkpoints.config import ModelConfig
from bireme_worker.checkpoints.errors import UnsupportedCheckpoint
from bireme_worker.checkpoints.quantization import AT_LOAD, Scheme, parse_quantization
from bireme_worker.checkpoints.reader import CheckpointReader
from bireme_worker.models.errors import CannotQuantize
from bireme_worker.models.matrix import pack
from bireme_worker.models.registry import StageModel, build
from bireme_worker.models.shard import Shard
from bireme_worker.models.stages import StageLayers
from bireme_worker.models.uploads import Read, Uploads
from bireme_worker.models.weight import Piece, Weight
from bireme_worker.quant.gpu import laid_out
from bireme_worker.quant.load import read_quantized, round_quantized
from bireme_worker.quant.matrix import Quantized
from bireme_worker.quant.stored import Found, Stored, scheme_of, stored

READ_BYTES: Final = 4 << 20


def expected_tensors(config: ModelConfig, found: Found = None) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor that a checkpoint of this model has; of what is ``found`` where that is free."""
    return {one.name: one.shape for one in stored_tensors(config, found)}


def stored_tensors(config: ModelConfig, found: Found = None) -> list[Stored]:
    """The same with the dtypes that each may have."""
    everything = StageLayers(0, config.num_hidden_layers, embeds=True, samples=True)
    whole = build(config, everything, Shard(0, 1), torch.float32)
    return [
        one
        for weight in whole.weights()
        for piece in weight.pieces
        for one in stored(piece, scheme_of(weight, config.quantization, found), found)
    ]


def check(config: ModelConfig, reader: CheckpointReader) -> None:
    """Account for every tensor, its shape and its dtype; reads nothing.

    Raises:
        CheckpointError: the checkpoint lacks a tensor, has one too many, or of another shape or dtype.
    """
    expected = stored_tensors(config, reader.tensors)
    account({one.name: one.shape for one in expected}, reader)
    for one in expected:
        info = reader.tensors[one.name]
        if info.dtype not in one.dtypes:
            raise UnsupportedCheckpoint(
                f"{info.file}: {one.name} is of type {info.dtype}, must be "
                f"{' or '.join(sorted(str(dtype) for dtype in one.dtypes))}: copy the checkpoint again"
            )


def scheme_at_load(name: str, config: ModelConfig) -> Scheme | None:
    """What `spec.model.quantization` makes of this model's plain weights.

    Raises:
        CannotQuantize: no such format, or the checkpoint is quantized already.
    """
    if name == "none":
        return None
    if name not in AT_LOAD:
        raise CannotQuantize(f"model.quantization is {name!r}: set it to none, {', '.join(AT_LOAD)}")
    if config.quantization not in {None, AT_LOAD[name]}:
        assert config.quantization is not None
        raise CannotQuantize(
            f"model.quantization is {name}, but the checkpoint is quantized already "
            f"({config.quantization}): set it to none"
        )
    return AT_LOAD[name]


def load(
    model: StageModel,
    reader: CheckpointReader,
    device: torch.device,
    *,
    packed: bool = True,
    quantization: str = "none",
) -> None:
    """Give every weight of ``model`` its memory and its values; ``packed`` for this device where that is faster.

    Raises:
        CheckpointError: the checkpoint lacks a tensor, has one too many, or of another shape; before anything is read.
        CannotQuantize: ``quantization`` can't be had of this model or of this shard.
    """
    rounded = scheme_at_load(quantization, model.config)
    check(model.config, reader)
    read_weights(model, reader, device, packed=packed, rounded=rounded)


def read_weights(
    model: StageModel, reader: CheckpointReader, device: torch.device, *, packed: bool, rounded: Scheme | None
) -> None:
    """The same from a checkpoint that may hold this rank's part alone, and quantized where the whole one is plain.

    Raises:
        CheckpointError: a tensor is not there.
    """
    model.place(device)
    with Uploads(device) if device.type == "cuda" else nullcontext() as uploads:
        _read_all(model, reader, device, packed=packed, rounded=rounded, uploads=uploads)
    if device.type == "cuda":
        torch.cuda.empty_cache()  # what laying out took, the key-value cache may have


def _read_all(
    model: StageModel,
    reader: CheckpointReader,
    device: torch.device,
    *,
    packed: bool,
    rounded: Scheme | None,
    uploads: Uploads | None,
) -> None:
    scheme = parse_quantization(reader.config)
    for weight in model.weights():
        held = scheme_of(weight, scheme, reader.tensors)
        if held is not None:
            weight.quantized = _placed(read_quantized(weight.pieces, held, reader), device, packed=packed)
        elif rounded is not None and weight.quantizes:
            weight.quantized = _placed(round_quantized(weight.pieces, rounded, reader), device, packed=packed)
        else:
            fill(weight, reader, device, packed=packed, uploads=uploads)


def _placed(matrix: Quantized, device: torch.device, *, packed: bool) -> Quantized:
    """On its device; a GPU's next model waits in the host's memory, not ``packed`` for the host."""
    placed = matrix.to(device)
    return placed if packed and device.type == "cpu" else laid_out(placed)


def fill(
    weight: Weight,
    reader: CheckpointReader,
    device: torch.device,
    *,
    packed: bool = True,
    uploads: Uploads | None = None,
) -> None:
    """Load one weight; rows that no piece covers are padding and zero. With ``uploads`` it is there after these."""
    target = torch.empty(weight.tensor.shape, dtype=weight.tensor.dtype, device=device)
    covered = sum(len(piece.rows) for piece in weight.pieces)
    if covered < len(target):
        target[covered:].zero_()
    for piece in weight.pieces:
        for read, place in _reads(piece, target, reader):
            if uploads is None:
                place.copy_(read())
            else:
                uploads.copy(read, place)
    weight.tensor = pack(target) if packed and weight.multiplies else target


def _reads(piece: Piece, target: torch.Tensor, reader: CheckpointReader) -> Iterator[tuple[Read, torch.Tensor]]:
    """What to read a few megabytes at a time, and where in ``target`` it belongs."""
    info = reader.tensors[piece.source]
    row_bytes = max(info.dtype.itemsize * (target.numel() // len(target)), 1)
    step = max(READ_BYTES // row_bytes, 1)
    for begin in range(0, len(piece.rows), step):
        rows = piece.rows[begin : begin + step]
        place = target[piece.at + begin : piece.at + begin + len(rows)]
        yield partial(_read_rows, piece, slice(rows.start, rows.stop), reader), place


def _read_rows(piece: Piece, rows: slice, reader: CheckpointReader) -> torch.Tensor:
    if piece.transposed:
        return reader.read(piece.source, (piece.slices[0], rows)).t()
    return reader.read(piece.source, (rows, *piece.slices[1:]))
