"""One draw per row, in the order of the design: penalties, bias, held stops, temperature, filters, noise, argmax.

Runs on every rank of the last stage over its vocabulary shard; all end with the same ids. The host's ``Draw`` decides
what runs, the device is never asked: the whole function can be captured.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from bireme_worker.parallel.communicator import Communicator
from bireme_worker.sampling import adjust
from bireme_worker.sampling.draw import Draw
from bireme_worker.sampling.filters import keep
from bireme_worker.sampling.logprobs import Report, report
from bireme_worker.sampling.noise import Generators, gumbel
from bireme_worker.sampling.pick import agree, pick
from bireme_worker.sampling.state import SamplingState

Adjustment = Callable[[torch.Tensor, torch.Tensor, SamplingState], torch.Tensor]


@dataclass(frozen=True, slots=True)
class Sampled:
    """Drawn ``ids [rows]``, rows whose logits were not finite, and the report of the rows that asked.

    An encoder draws nothing: it has ``vectors [rows, hidden]``. ``prompt`` is the report of scored prompt tokens.
    """

    ids: torch.Tensor
    bad: torch.Tensor
    report: Report | None
    vectors: torch.Tensor | None = None
    prompt: Report | None = None


@dataclass(frozen=True, slots=True)
class Rows:
    """The sampling rows of a step: ``slots [rows]``, number ``outputs [rows]`` of the output token, and ``draw``.

    The rest are ``draw``'s groups of row numbers as tensors.
    """

    slots: torch.Tensor
    outputs: torch.Tensor
    draw: Draw
    masks: tuple[bytes, ...]
    hot: torch.Tensor
    filtered: torch.Tensor
    penalised: torch.Tensor
    biased: torch.Tensor
    held: torch.Tensor
    masked: torch.Tensor
    reported: torch.Tensor

    @classmethod
    def of(
        cls,
        slots: torch.Tensor,
        outputs: torch.Tensor,
        draw: Draw,
        groups: torch.Tensor,
        masks: tuple[bytes, ...] = (),
    ) -> "Rows":
        """``groups [groups, rows or more]`` has each group of ``draw`` at the start of a row; one mask a masked row."""
        numbers = (row[: len(group)] for row, group in zip(groups, draw.groups, strict=True))
        return cls(slots, outputs, draw, masks, *numbers)


def sample(logits: torch.Tensor, rows: Rows, state: SamplingState, communicator: Communicator) -> Sampled:
    """Draw from ``logits [rows, shard]``, which are overwritten."""
    draw = rows.draw
    if logits.is_cuda and draw.is_plain:
        from bireme_worker.kernels.draw import draw as draw_plainly  # noqa: PLC0415  Triton is there only beside a GPU

        offers = draw_plainly(logits, rows.slots, rows.outputs, state)
        return Sampled(*agree(*offers, communicator), None)
    # A sum is finite only if all are: one cheap pass instead of a test of every value.
    bad = ~logits[:, : state.shard.count].sum(1).isfinite()
    scores = _adjusted(logits.clone() if draw.reported else logits, rows, state)
    if len(draw.hot) == draw.rows:
        scores = _noised(scores, rows, state, communicator)
    elif draw.hot:
        scores.index_copy_(0, rows.hot, _noised(scores.index_select(0, rows.hot), rows, state, communicator))
    ids, bad = pick(scores, bad, state.shard, communicator)
    if draw.penalised:
        state.count(rows.slots[rows.penalised], ids[rows.penalised])
    return Sampled(ids, bad, _report(logits, ids, rows, state, communicator) if draw.reported else None)


def _adjusted(scores: torch.Tensor, rows: Rows, state: SamplingState) -> torch.Tensor:
    steps: tuple[tuple[torch.Tensor, Adjustment], ...] = (
        (rows.penalised, adjust.penalise),
        (rows.biased, adjust.bias),
        (rows.held, adjust.hold_stops),
    )
    for index, change in steps:
        if len(index):
            scores.index_copy_(0, index, change(scores.index_select(0, index), rows.slots[index], state))
    if rows.masks:
        scores.index_copy_(0, rows.masked, adjust.mask(scores.index_select(0, rows.masked), rows.masks, state.shard))
    return scores


def _noised(scores: torch.Tensor, rows: Rows, state: SamplingState, communicator: Communicator) -> torch.Tensor:
    """``scores`` of the hot rows over temperature, filtered, plus noise; overwrites them."""
    slots, shard = rows.slots[rows.hot], state.shard
    scores.div_(state.temperature[slots].unsqueeze(1))
    if rows.draw.filtered:
        kept = keep(scores.index_select(0, rows.filtered), slots[rows.filtered], state, rows.draw, communicator)
        scores.index_copy_(0, rows.filtered, kept)
    generators = Generators(state.seed_low[slots], state.seed_high[slots], rows.outputs[rows.hot], state.choice[slots])
    return scores.add_(gumbel(generators, shard.start, shard.width))


def _report(
    logits: torch.Tensor, ids: torch.Tensor, rows: Rows, state: SamplingState, communicator: Communicator
) -> Report:
    raw = logits.index_select(0, rows.reported)
    return report(raw, ids[rows.reported], max(rows.draw.tops), state.shard, communicator)
