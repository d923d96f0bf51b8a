"""Reads linear layers into matrices that stay packed, from any format, or rounds plain weights while they are read."""

from collections.abc import Iterator
from typing import Final

import torch

from bireme_worker.checkpoints.errors import CorruptFile
from bireme_worker.checkpoints.quantization import Method, Scheme
from bireme_worker.checkpoints.reader import CheckpointReader
from bireme_worker.models.weight import Piece
from bireme_worker.quant.matrix import Fp8Matrix, GroupedMatrix, Quantized, StackedMatrix
from bireme_worker.quant.rounding import pack_nibbles, round_fp8, round_groups
from bireme_worker.quant.stored import Stored, base, spans, stored

CHUNK: Final = 1 << 20
"""Weights that are unpacked or rounded at a time."""
_AWQ_PLACES: Final = (0, 4, 1, 5, 2, 6, 3, 7)
"""Which nibble of an AWQ word holds which of its eight outputs."""

Tensors = dict[str, torch.Tensor]


def read_quantized(pieces: tuple[Piece, ...], scheme: Scheme, reader: CheckpointReader) -> Quantized:
    """Read matrices that the checkpoint holds in ``scheme``; several are computed one after another as one.

    Raises:
        CheckpointError, ConfigurationError: they are not what they must be, or are cut inside a group.
    """
    return _stack([matrix_of(piece, scheme, _read(piece, scheme, reader)) for piece in pieces])


def round_quantized(pieces: tuple[Piece, ...], scheme: Scheme, reader: CheckpointReader) -> Quantized:
    """Read plain matrices and round them to ``scheme``."""
    return _stack([matrix_of(piece, scheme, rounded(piece, scheme, reader)) for piece in pieces])


def _stack(matrices: list[Quantized]) -> Quantized:
    return matrices[0] if len(matrices) == 1 else StackedMatrix(tuple(matrices))


def _read(piece: Piece, scheme: Scheme, reader: CheckpointReader) -> Tensors:
    return {one.name: reader.read(one.name, one.slices) for one in stored(piece, scheme, reader.tensors)}


def rounded(piece: Piece, scheme: Scheme, reader: CheckpointReader) -> Tensors:
    """The tensors with which a checkpoint of ``scheme`` would hold a plain ``piece``, by name."""
    targets = [Stored(one.name, one.shape, one.slices) for one in stored(_straight(piece), scheme, None)]
    values = torch.empty(targets[0].part, dtype=torch.float8_e4m3fn if scheme.method is Method.FP8 else torch.uint8)
    scales = torch.empty(targets[1].part, dtype=torch.float32 if scheme.method is Method.FP8 else torch.float16)
    for at, part in _plain_rows(piece, reader, whole=scheme.method is Method.FP8):
        rows = slice(at, at + len(part))
        if scheme.method is Method.FP8:
            rounded_rows, row_scales = round_fp8(part)
            values[rows], scales[rows, 0] = rounded_rows[:, spans(_straight(piece))[1]], row_scales
        else:
            codes, scales[rows] = round_groups(part, scheme.bits, scheme.group)
            values[rows] = pack_nibbles(codes) if scheme.bits == 4 else codes
    return {targets[0].name: values, targets[1].name: scales}


def _straight(piece: Piece) -> Piece:
    """The same matrix, as outputs × inputs."""
    if not piece.transposed:
        return piece
    return Piece(piece.source, piece.shape[::-1], piece.slices[::-1], piece.at)


def _plain_rows(piece: Piece, reader: CheckpointReader, *, whole: bool) -> Iterator[tuple[int, torch.Tensor]]:
    """Runs of rows of a plain matrix, in its columns or in all of them (a scale must not depend on the layout)."""
    straight = _straight(piece)
    rows, columns = spans(straight)
    if whole:
        columns = slice(0, straight.shape[1])
    step = max(CHUNK // straight.shape[1], 1)
    for begin in range(rows.start, rows.stop, step):
        cut = slice(begin, min(begin + step, rows.stop))
        if piece.transposed:
            yield begin - rows.start, reader.read(piece.source, (columns, cut)).t()
        else:
            yield begin - rows.start, reader.read(piece.source, (cut, columns))


def matrix_of(piece: Piece, scheme: Scheme, tensors: Tensors) -> Quantized:
    """What the ``tensors`` of a piece multiply by."""
    name = base(piece)
    match scheme.method:
        case Method.BIREME:
            return GroupedMatrix(scheme.bits, tensors[f"{name}.codes"], tensors[f"{name}.scales"])
        case Method.GPTQ:
            return _gptq(piece, scheme, tensors)
        case Method.AWQ:
            return _awq(piece, tensors)
        case Method.FP8:
            return _fp8(piece, tensors)


def _fp8(piece: Piece, tensors: Tensors) -> Fp8Matrix:
    values = tensors[piece.source]
    scales = tensors[f"{base(piece)}.weight_scale"].float().reshape(-1).expand(len(values)).contiguous()
    inputs = tensors.get(f"{base(piece)}.input_scale")
    return Fp8Matrix(values, scales, None if inputs is None else inputs.float().reshape(1))


def _gptq(piece: Piece, scheme: Scheme, tensors: Tensors) -> GroupedMatrix:
    name, bits = base(piece), scheme.bits
    words = tensors[f"{name}.qweight"]
    shifts = torch.arange(0, 32, bits, dtype=torch.int32)
    codes = torch.empty((words.shape[1], words.shape[0] * 4), dtype=torch.uint8)
    for rows in _runs(words.shape[1], words.shape[0] * len(shifts)):
        inputs = (words[:, None, rows] >> shifts[:, None]).bitwise_and_((1 << bits) - 1)
        _put(codes, rows, inputs.to(torch.uint8).flatten(0, 1), bits)
    zeros = (tensors[f"{name}.qzeros"].unsqueeze(2) >> shifts) + scheme.zero_offset
    zeros = zeros.bitwise_and_((1 << bits) - 1).to(torch.uint8).flatten(1)
    return GroupedMatrix(
        bits,
        codes,
        tensors[f"{name}.scales"].t().contiguous(),
        zeros.t().contiguous(),
        _group_of(piece, scheme, tensors[f"{name}.g_idx"], len(zeros)),
    )


def _group_of(piece: Piece, scheme: Scheme, named: torch.Tensor, groups: int) -> torch.Tensor | None:
    """The group of each input, None where they come in order."""
    if len(named) and not 0 <= int(named.min()) <= int(named.max()) < piece.shape[1] // (
        scheme.group or piece.shape[1]
    ):
        raise CorruptFile(f"{base(piece)}.g_idx names groups {int(named.min())} to {int(named.max())} of {groups}")
    columns = spans(piece)[1]
    size = scheme.group or piece.shape[1]
    in_order = torch.equal(named.long(), torch.arange(columns.start, columns.stop) // size)
    if scheme.act_order:
        return None if in_order and columns == slice(0, piece.shape[1]) else named.long()
    if not in_order:
        raise CorruptFile(f"{base(piece)}.g_idx is out of order, but config.json has desc_act false: set it to true")
    return None


def _awq(piece: Piece, tensors: Tensors) -> GroupedMatrix:
    name = base(piece)
    words = tensors[f"{name}.qweight"]
    shifts = torch.tensor(_AWQ_PLACES, dtype=torch.int32) * 4
    codes = torch.empty((words.shape[1] * 8, words.shape[0] // 2), dtype=torch.uint8)
    for run in _runs(words.shape[1], words.shape[0] * 8):
        inputs = (words[:, run].unsqueeze(2) >> shifts).bitwise_and_(15).to(torch.uint8).flatten(1)
        _put(codes, slice(run.start * 8, run.stop * 8), inputs, bits=4)
    zeros = (tensors[f"{name}.qzeros"].unsqueeze(2) >> shifts).bitwise_and_(15).to(torch.uint8).flatten(1)
    return GroupedMatrix(4, codes, tensors[f"{name}.scales"].t().contiguous(), zeros.t().contiguous())


def _runs(total: int, weight: int) -> Iterator[slice]:
    step = max(CHUNK // max(weight, 1), 1)
    return (slice(begin, min(begin + step, total)) for begin in range(0, total, step))


def _put(codes: torch.Tensor, rows: slice, inputs: torch.Tensor, bits: int) -> None:
    """Write codes ``[inputs, rows]`` as rows."""
    turned = inputs.t().contiguous()
    codes[rows] = pack_nibbles(turned) if bits == 4 else turned
