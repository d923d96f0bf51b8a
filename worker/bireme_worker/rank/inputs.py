"""The inputs of a step in one buffer at a fixed address, filled from a plan by one copy that nobody waits for.

Rows with one token come first, so that they form one batch; longer rows follow. Nothing is read back from the device:
whatever chooses shapes is known from the plan. Behind the rows lies padding (slot 0, one token): a captured step may
have more rows than its plan.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import torch

from bireme.wire.plan import Row
from bireme_worker.models.batch import Batch
from bireme_worker.models.kv_cache import BLOCK_SIZE
from bireme_worker.models.transfer import upload_into
from bireme_worker.rank.errors import BadPlan
from bireme_worker.rank.slots import Slots
from bireme_worker.sampling.draw import Draw
from bireme_worker.sampling.sampler import Rows

NOTHING: Final[Mapping[int, bytes]] = {}
FROM_SLOT = -1
"""Stands for a token id that is the slot's last sample."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What the host knows of a step.

    Attributes:
        tokens, rows: how many.
        single: rows with one token, which come first.
        spans: (first token, end, context length) of each later row.
        lengths: context lengths of the single rows, rising.
        waits_for: slots whose last sample is an input.
        sampled: slots that sample, in plan order.
        draw: how they sample.
        masks: what its masked rows may draw.
        scored: (first token, ids, likeliest wanted) of each row whose tokens are scored.
    """

    tokens: int
    rows: int
    single: int
    spans: tuple[tuple[int, int, int], ...]
    lengths: tuple[int, ...]
    waits_for: frozenset[int]
    sampled: tuple[int, ...]
    draw: Draw
    masks: tuple[bytes, ...] = ()
    scored: tuple[tuple[int, bytes, int], ...] = ()

    @property
    def is_plain(self) -> bool:
        """Only what every decode step has: each row computes one token and samples, by its temperature alone."""
        return 0 < self.rows == self.single == len(self.sampled) and self.draw.is_plain and not self.scored


class Inputs:
    """Buffers for up to ``max_tokens`` tokens and ``max_rows`` rows, with up to ``drafts`` guesses each."""

    def __init__(self, max_tokens: int, max_rows: int, device: torch.device, drafts: int = 0) -> None:
        self._max_tokens, self._max_rows = max_tokens, max_rows
        self._max_draws = max_rows * (1 + drafts)
        size = 3 * max_tokens + 3 * (max_rows + 1) + 10 * self._max_draws
        self._device = torch.zeros(size, dtype=torch.int64, device=device)
        self._host = np.zeros(size, dtype=np.int64)
        parts = [3 * max_tokens, 3 * (max_rows + 1), 3 * self._max_draws, 7 * self._max_draws]
        tokens, rows, samples, groups = torch.split(self._device, parts)
        self.ids, self.token_slots, self.positions = tokens.view(3, -1)
        self.row_slots, self.seq_lens, self.cu_seqlens = rows.view(3, -1)
        self.sample_tokens, self.sample_slots, self.sample_outputs = samples.view(3, -1)
        self._groups = groups.view(7, -1)
        cuts = np.split(self._host, np.cumsum(parts)[:-1])
        self._columns = [cut.reshape(count, -1) for cut, count in zip(cuts, (3, 3, 3, 7), strict=True)]

    @property
    def addresses(self) -> tuple[int, ...]:
        """Where the buffers lie; never changes."""
        return (self._device.data_ptr(),)

    def fill(
        self,
        rows: Sequence[Row],
        slots: Slots,
        masks: Mapping[int, bytes] = NOTHING,
        targets: Mapping[int, bytes] = NOTHING,
    ) -> Shape:
        """Write a plan's rows into the buffers, and padding behind them; ``masks`` and ``targets`` by slot.

        Raises:
            BadPlan: more tokens or rows than there is room for.
        """
        # Single rows of similar length side by side; the sort is stable, so long rows keep the plan's order.
        ordered = sorted(rows, key=lambda row: (row.count > 1, row.start if row.count == 1 else 0))
        counts = [row.count for row in ordered]
        ends = np.cumsum([0, *counts])
        sampling = [(row, number) for row in rows if row.output >= 0 for number in range(row.drafts + 1)]
        self._check(int(ends[-1]), len(ordered), len(sampling))
        tokens, table, samples, groups = self._columns
        _put(tokens, _token_columns(ordered), self._max_rows)
        lengths = [row.start + row.count for row in ordered]
        _put(table[0], np.array([row.slot for row in ordered], dtype=np.int64), self._max_rows)
        table[1] = 1  # padding reads one token
        table[1, : len(ordered)] = lengths
        table[2, : len(ends)] = ends
        first = {row.slot: int(end) - 1 - row.drafts for row, end in zip(ordered, ends[1:], strict=True)}
        columns = [[first[row.slot] + number, row.slot, row.output + number] for row, number in sampling]
        _put(samples, np.array(columns, dtype=np.int64).reshape(-1, 3).T, self._max_rows)
        samples[0, len(sampling) : self._max_rows] = np.arange(len(sampling), self._max_rows)
        samplings = [slots.sampling[row.slot] for row, _ in sampling]
        outputs = [row.output + at for row, at in sampling]
        draw = Draw.of(samplings, outputs, [place for place, (row, _) in enumerate(sampling) if row.slot in masks])
        for column, group in zip(groups, draw.groups, strict=True):
            column[: len(group)] = group
        upload_into(self._device, self._host)
        single = counts.count(1)
        return Shape(
            tokens=int(ends[-1]),
            rows=len(ordered),
            single=single,
            spans=tuple(
                (int(ends[number]), int(ends[number + 1]), lengths[number]) for number in range(single, len(ordered))
            ),
            lengths=tuple(lengths[:single]),
            waits_for=frozenset(row.slot for row in rows if not row.ids),
            sampled=tuple(row.slot for row, _ in sampling),
            draw=draw,
            scored=_scored(ordered, ends, slots, targets),
            masks=tuple(masks[sampling[place][0].slot] for place in draw.masked),
        )

    def batch(self, shape: Shape, slots: Slots) -> Batch:
        """The flat metadata of the step, computed on the device."""
        positions = self.positions[: shape.tokens]
        token_slots = self.token_slots[: shape.tokens]
        block = slots.block_table[token_slots, positions // BLOCK_SIZE]
        return Batch(
            positions=positions,
            slot_mapping=block * BLOCK_SIZE + positions % BLOCK_SIZE,
            cu_seqlens=self.cu_seqlens[: shape.rows + 1],
            seq_lens=self.seq_lens[: shape.rows],
            slots=self.row_slots[: shape.rows],
            block_table=slots.block_table,
            single=shape.single,
            spans=shape.spans,
            lengths=shape.lengths,
        )

    def sampling_rows(self, shape: Shape) -> Rows:
        """The rows that sample."""
        rows = shape.draw.rows
        return Rows.of(self.sample_slots[:rows], self.sample_outputs[:rows], shape.draw, self._groups, shape.masks)

    def token_ids(self, shape: Shape, slots: Slots) -> torch.Tensor:
        """Ids of the step's tokens; those that the host does not know yet come from the slots."""
        ids = self.ids[: shape.tokens]
        return torch.where(ids == FROM_SLOT, slots.last_sample[self.token_slots[: shape.tokens]], ids)

    def _check(self, tokens: int, rows: int, draws: int) -> None:
        if tokens > self._max_tokens or rows > self._max_rows or draws > self._max_draws:
            raise BadPlan(
                f"a plan has {tokens} tokens in {rows} rows, this rank has room for {self._max_tokens} tokens "
                f"in {self._max_rows} rows; it draws {draws} tokens of at most {self._max_draws}"
            )


def _token_columns(rows: Sequence[Row]) -> npt.NDArray[np.int64]:
    columns = np.empty((3, sum(row.count for row in rows)), dtype=np.int64)
    at = 0
    for row in rows:
        end = at + row.count
        columns[0, at:end] = np.frombuffer(row.ids, "<i4") if row.ids else FROM_SLOT
        columns[1, at:end] = row.slot
        columns[2, at:end] = np.arange(row.start, row.start + row.count)
        at = end
    return columns


def _scored(
    ordered: Sequence[Row], ends: npt.NDArray[np.int64], slots: Slots, targets: Mapping[int, bytes]
) -> tuple[tuple[int, bytes, int], ...]:
    first = {row.slot: int(end) for row, end in zip(ordered, ends, strict=False)}
    return tuple((first[slot], ids, slots.sampling[slot].prompt_logprobs) for slot, ids in targets.items())


def _put(column: npt.NDArray[np.int64], values: npt.NDArray[np.int64], padded: int) -> None:
    """``values`` along the last axis, then zeros up to ``padded``."""
    count = values.shape[-1]
    column[..., :count] = values
    column[..., count:padded] = 0
