"""LoRA adapters beside the weights: requests of any adapters, and of none, are computed together in one pass.

The matrices of all adapters on one weight lie side by side: one product brings a token into all their ranks, a mask
keeps those of its own adapter, one product brings it back. What other adapters add is exactly zero, so neighbours
change nothing. A column-parallel weight takes its rows of the second matrix, a row-parallel one its columns of the
first, and its sum over ranks takes both along.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from bireme_worker.checkpoints.adapter import Adapter, LowRankPair
from bireme_worker.checkpoints.errors import UnsupportedCheckpoint, WrongShape
from bireme_worker.models.weight import Piece, Weight


class AdapterStep:
    """Which adapter each token of the running step has (0: none), ``[tokens]``; None when no token has one."""

    tokens: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class LowRank:
    """``down [ranks, inputs]``, ``up [ranks, outputs]`` of all adapters; ``owner [ranks]`` says whose each rank is."""

    step: AdapterStep
    down: torch.Tensor
    up: torch.Tensor
    owner: torch.Tensor

    def add(self, x: torch.Tensor, y: torch.Tensor) -> None:
        """Add to ``y [tokens, outputs]`` what the tokens' adapters make of ``x [tokens, inputs]``."""
        if self.step.tokens is not None:
            mine = self.step.tokens.unsqueeze(1) == self.owner
            y.addmm_((x @ self.down.t()).mul_(mine), self.up)


def attach(
    weights: Iterable[Weight],
    adapters: Sequence[Adapter],
    whole: Iterable[Weight],
    dtype: torch.dtype,
    device: torch.device,
) -> AdapterStep | None:
    """Hang ``adapters`` (numbered from 1) on a rank's ``weights``; None without adapters.

    ``whole``: the weights of the undivided model, by which adapters are judged.

    Raises:
        CheckpointError: an adapter is for another model.
    """
    if not adapters:
        return None
    known = {_module(piece): piece for weight in whole if weight.adapts for piece in weight.pieces}
    for adapter in adapters:
        _check(adapter, known)
    step = AdapterStep()
    for weight in weights:
        if weight.adapts:
            weight.low_rank = _low_rank(weight, adapters, step, dtype, device)
    return step


def _module(piece: Piece) -> str:
    return piece.source.removesuffix(".weight")


def _check(adapter: Adapter, known: dict[str, Piece]) -> None:
    for module, pair in adapter.pairs.items():
        if module not in known:
            targets = sorted({name.rpartition(".")[2] for name in known})
            raise UnsupportedCheckpoint(
                f"adapter {adapter.name} is for {module}, which this model can't adapt: it can {', '.join(targets)}"
            )
        outputs, inputs = known[module].shape
        if (pair.up.shape[0], pair.down.shape[1]) != (outputs, inputs):
            raise WrongShape(
                f"adapter {adapter.name} makes {pair.up.shape[0]} outputs of {pair.down.shape[1]} inputs at {module}, "
                f"the model {outputs} of {inputs}: it was trained on another model"
            )


def _low_rank(
    weight: Weight, adapters: Sequence[Adapter], step: AdapterStep, dtype: torch.dtype, device: torch.device
) -> LowRank | None:
    parts = [
        (number, piece, adapter.pairs[_module(piece)])
        for number, adapter in enumerate(adapters, 1)
        for piece in weight.pieces
        if _module(piece) in adapter.pairs
    ]
    if not parts:
        return None
    outputs = sum(len(piece.rows) for piece in weight.pieces)
    down = torch.cat([_down(piece, pair) for _, piece, pair in parts])
    up = torch.cat([_up(piece, pair, outputs) for _, piece, pair in parts])
    owner = torch.cat([torch.full((len(pair.down),), number) for number, _, pair in parts])
    return LowRank(step, down.to(device, dtype), up.to(device, dtype), owner.to(device))


def _down(piece: Piece, pair: LowRankPair) -> torch.Tensor:
    """The rank's columns of the first matrix."""
    return pair.down[:, piece.slices[1]] if len(piece.slices) > 1 else pair.down


def _up(piece: Piece, pair: LowRankPair, outputs: int) -> torch.Tensor:
    """The rank's rows of the second matrix, transposed, at their place among the outputs of the packed weight."""
    up = torch.zeros((pair.up.shape[1], outputs))
    rows = piece.rows
    up[:, piece.at : piece.at + len(rows)] = pair.up[rows.start : rows.stop].t()
    return up
