"""Which tensors of a checkpoint hold one linear layer, and which slice of each a rank needs.

This is all that a format says about places: the accounting takes whole shapes from here, a rank its slices, and
`bireme convert` what it writes. A shard edge that falls inside a group of inputs or inside a packed word is refused.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import torch

from bireme_worker.checkpoints.errors import UnsupportedCheckpoint
from bireme_worker.checkpoints.quantization import Method, Scheme
from bireme_worker.checkpoints.reader import TensorInfo
from bireme_worker.models.errors import CannotQuantize
from bireme_worker.models.weight import Piece, Weight
from bireme_worker.quant.matrix import FP8

FLOATS: Final = frozenset({torch.float32, torch.float16, torch.bfloat16})
INTEGERS: Final = frozenset({torch.int32})
BYTES: Final = frozenset({torch.uint8})
_MARK: Final = {Method.GPTQ: "qweight", Method.AWQ: "qweight", Method.BIREME: "codes", Method.FP8: "weight"}


@dataclass(frozen=True, slots=True)
class Stored:
    """A slice of one tensor of a checkpoint, which may have one of ``dtypes``."""

    name: str
    shape: tuple[int, ...]
    slices: tuple[slice, ...]
    dtypes: frozenset[torch.dtype] = FLOATS

    @property
    def part(self) -> tuple[int, ...]:
        """Shape of the slice."""
        cut = tuple(one.stop - one.start for one in self.slices)
        return (*cut, *self.shape[len(cut) :])


Found = Mapping[str, TensorInfo] | None
"""The tensors that are there; None: only config.json is known, and all linear layers are taken as quantized."""


def scheme_of(weight: Weight, scheme: Scheme | None, found: Found) -> Scheme | None:
    """How a checkpoint of ``scheme`` holds ``weight``: it may leave any layer plain.

    Raises:
        UnsupportedCheckpoint: matrices that are computed as one are held in two ways.
    """
    if scheme is None or not weight.quantizes:
        return None
    held = {_is_quantized(piece, scheme, found) for piece in weight.pieces}
    if len(held) > 1:
        names = ", ".join(piece.source for piece in weight.pieces)
        raise UnsupportedCheckpoint(f"of {names} some are quantized and some not: quantize all of them or none")
    return scheme if held == {True} else None


def _is_quantized(piece: Piece, scheme: Scheme, found: Found) -> bool:
    if found is None:
        return True
    name = f"{base(piece)}.{_MARK[scheme.method]}"
    return name in found and (scheme.method is not Method.FP8 or found[name].dtype == FP8)


def base(piece: Piece) -> str:
    """The name of a layer."""
    return piece.source.removesuffix(".weight")


def plain(piece: Piece) -> Stored:
    """A tensor that is not quantized."""
    return Stored(piece.source, piece.shape, piece.slices)


def stored(piece: Piece, scheme: Scheme | None, found: Found) -> tuple[Stored, ...]:
    """The tensors of ``piece``.

    Raises:
        CannotQuantize: an edge of the shard is inside a group or word. UnsupportedCheckpoint: transposed matrices.
    """
    if scheme is None:
        return (plain(piece),)
    if piece.transposed:
        raise UnsupportedCheckpoint(f"{piece.source} is quantized and transposed, which is not supported")
    make = {Method.GPTQ: _gptq, Method.AWQ: _awq, Method.BIREME: _bireme, Method.FP8: _fp8}
    return make[scheme.method](piece, scheme, found)


def _gptq(piece: Piece, scheme: Scheme, _found: Found) -> tuple[Stored, ...]:
    outputs, inputs = piece.shape
    rows, columns = spans(piece)
    word = 32 // scheme.bits
    groups, some = _groups(piece, scheme, every=scheme.act_order)
    name, words = base(piece), _over(piece, rows, word, "outputs")
    return (
        Stored(f"{name}.qweight", (inputs // word, outputs), (_over(piece, columns, word, "inputs"), rows), INTEGERS),
        Stored(f"{name}.qzeros", (groups, outputs // word), (some, words), INTEGERS),
        Stored(f"{name}.scales", (groups, outputs), (some, rows)),
        Stored(f"{name}.g_idx", (inputs,), (columns,), INTEGERS),
    )


def _awq(piece: Piece, scheme: Scheme, _found: Found) -> tuple[Stored, ...]:
    outputs, inputs = piece.shape
    rows, columns = spans(piece)
    word = 32 // scheme.bits
    groups, some = _groups(piece, scheme)
    name, words = base(piece), _over(piece, rows, word, "outputs")
    return (
        Stored(f"{name}.qweight", (inputs, outputs // word), (columns, words), INTEGERS),
        Stored(f"{name}.qzeros", (groups, outputs // word), (some, words), INTEGERS),
        Stored(f"{name}.scales", (groups, outputs), (some, rows)),
    )


def _bireme(piece: Piece, scheme: Scheme, _found: Found) -> tuple[Stored, ...]:
    outputs, inputs = piece.shape
    rows, columns = spans(piece)
    groups, some = _groups(piece, scheme)
    packed = _over(piece, columns, 8 // scheme.bits, "inputs")
    return (
        Stored(f"{base(piece)}.codes", (outputs, inputs * scheme.bits // 8), (rows, packed), BYTES),
        Stored(f"{base(piece)}.scales", (outputs, groups), (rows, some)),
    )


def _fp8(piece: Piece, scheme: Scheme, found: Found) -> tuple[Stored, ...]:
    outputs, _ = piece.shape
    rows, _ = spans(piece)
    scales, inputs = f"{base(piece)}.weight_scale", f"{base(piece)}.input_scale"
    shape = found[scales].shape if found is not None and scales in found else (outputs, 1)
    if shape not in {(), (1,), (outputs,)}:
        shape = (outputs, 1)
    whole = shape in {(), (1,)} and outputs > 1
    held = [
        Stored(piece.source, piece.shape, spans(piece), frozenset({FP8})),
        Stored(scales, shape, () if whole else (rows,)),
    ]
    if scheme.static:
        shape = found[inputs].shape if found is not None and inputs in found else (1,)
        held.append(Stored(inputs, () if shape == () else (1,), ()))
    return tuple(held)


def spans(piece: Piece) -> tuple[slice, slice]:
    """Rows and columns of a matrix that a piece takes."""
    outputs, inputs = piece.shape
    rows = piece.slices[0] if piece.slices else slice(0, outputs)
    return rows, piece.slices[1] if len(piece.slices) > 1 else slice(0, inputs)


def _groups(piece: Piece, scheme: Scheme, *, every: bool = False) -> tuple[int, slice]:
    """Groups of a row, and those of this piece."""
    inputs = piece.shape[1]
    size = scheme.group or inputs
    if inputs % size:
        raise CannotQuantize(
            f"{piece.source} has {inputs} inputs, which are no whole groups of {size} as {scheme} needs: "
            "leave model.quantization none or take int8, int4 only for models whose layers are multiples of the group"
        )
    columns = spans(piece)[1]
    if every or columns == slice(0, inputs):
        return inputs // size, slice(0, inputs // size)
    return inputs // size, _over(piece, columns, size, "inputs", group=True)


def _over(piece: Piece, span: slice, size: int, what: str, *, group: bool = False) -> slice:
    if span.start % size or span.stop % size:
        unit = "quantization groups" if group else "packed words"
        total = piece.shape[1] if what == "inputs" else piece.shape[0]
        fitting = [n for n in range(1, 65) if total % (n * size) == 0]
        raise CannotQuantize(
            f"{piece.source}: this shard takes {what} {span.start} to {span.stop} of {total}, but {unit} hold {size}: "
            f"set parallelism.tensor such that {total} divides into multiples of {size}"
            + (f" ({', '.join(map(str, fitting))})" if fitting else " (none does)")
        )
    return slice(span.start // size, span.stop // size)
