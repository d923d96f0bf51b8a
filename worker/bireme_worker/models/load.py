"""Fills a rank's weights from a checkpoint: each tensor accounted for, each rank reading only its slices.

Reads go a few megabytes at a time straight into the final memory, so a load needs no second copy of anything.
"""

from typing import Final

import torch

from bireme_worker.checkpoints.accounting import account
from bireme_worker.checkpoints.config import ModelConfig
from bireme_worker.checkpoints.reader import CheckpointReader
from bireme_worker.models.matrix import pack
from bireme_worker.models.registry import StageModel, build
from bireme_worker.models.shard import Shard
from bireme_worker.models.stages import StageLayers
from bireme_worker.models.weight import Piece, Weight

READ_BYTES: Final = 4 << 20


def expected_tensors(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor that a checkpoint of this model has."""
    everything = StageLayers(0, config.num_hidden_layers, embeds=True, samples=True)
    whole = build(config, everything, Shard(0, 1), torch.float32)
    return {piece.source: piece.shape for weight in whole.weights() for piece in weight.pieces}


def load(model: StageModel, reader: CheckpointReader, device: torch.device, *, packed: bool = True) -> None:
    """Give every weight of ``model`` its memory and its values; ``packed`` for this device where that is faster.

    Raises:
        CheckpointError: the checkpoint lacks a tensor, has one too many, or of another shape; before anything is read.
    """
    account(expected_tensors(model.config), reader)
    model.place(device)
    for weight in model.weights():
        fill(weight, reader, device, packed=packed)


def fill(weight: Weight, reader: CheckpointReader, device: torch.device, *, packed: bool = True) -> None:
    """Load one weight; rows that no piece covers are padding and zero."""
    target = torch.empty(weight.tensor.shape, dtype=weight.tensor.dtype, device=device)
    covered = sum(len(piece.rows) for piece in weight.pieces)
    if covered < len(target):
        target[covered:].zero_()
    for piece in weight.pieces:
        _copy(piece, target, reader)
    weight.tensor = pack(target) if packed and weight.multiplies else target


def _copy(piece: Piece, target: torch.Tensor, reader: CheckpointReader) -> None:
    info = reader.tensors[piece.source]
    row_bytes = max(info.dtype.itemsize * (target.numel() // len(target)), 1)
    step = max(READ_BYTES // row_bytes, 1)
    for begin in range(0, len(piece.rows), step):
        rows = piece.rows[begin : begin + step]
        part = reader.read(piece.source, (slice(rows.start, rows.stop), *piece.slices[1:]))
        target[piece.at + begin : piece.at + begin + len(rows)].copy_(part)
