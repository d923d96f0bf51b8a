"""The inputs of a step in buffers at fixed addresses, filled from a plan.

Rows with one token come first, so that they form one batch; longer rows follow. Nothing is read back from the device:
whatever chooses shapes is known from the plan.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from bireme.wire.plan import Row
from bireme_worker.models.batch import Batch
from bireme_worker.models.kv_cache import BLOCK_SIZE
from bireme_worker.rank.errors import BadPlan
from bireme_worker.rank.slots import Slots
from bireme_worker.sampling.draw import Draw
from bireme_worker.sampling.sampler import Rows

FROM_SLOT = -1
"""Stands for a token id that is the slot's last sample."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What the host knows of a step.

    Attributes:
        tokens, rows: how many.
        single: rows with one token, which come first.
        spans: (first token, end, context length) of each later row.
        longest: the longest context among the single rows; ``blocks``: of the longest context of all.
        waits_for: slots whose last sample is an input.
        sampled: slots that sample, in plan order.
        draw: how they sample.
    """

    tokens: int
    rows: int
    single: int
    spans: tuple[tuple[int, int, int], ...]
    longest: int
    blocks: int
    waits_for: frozenset[int]
    sampled: tuple[int, ...]
    draw: Draw


class Inputs:
    """Buffers for up to ``max_tokens`` tokens and ``max_rows`` rows."""

    def __init__(self, max_tokens: int, max_rows: int, device: torch.device) -> None:
        self._tokens = torch.zeros((3, max_tokens), dtype=torch.int64, device=device)
        self._rows = torch.zeros((3, max_rows + 1), dtype=torch.int64, device=device)
        self._samples = torch.zeros((3, max_rows), dtype=torch.int64, device=device)
        self._groups = torch.zeros((6, max_rows), dtype=torch.int64, device=device)
        self.ids, self.token_slots, self.positions = self._tokens
        self.row_slots, self.seq_lens, self.cu_seqlens = self._rows
        self.sample_tokens, self.sample_slots, self.sample_outputs = self._samples

    @property
    def addresses(self) -> tuple[int, ...]:
        """Where the buffers lie; never changes."""
        return tuple(one.data_ptr() for one in (self._tokens, self._rows, self._samples, self._groups))

    def fill(self, rows: Sequence[Row], slots: Slots) -> Shape:
        """Write a plan's rows into the buffers.

        Raises:
            BadPlan: more tokens or rows than there is room for.
        """
        ordered = sorted(rows, key=lambda row: row.count > 1)  # stable: both parts keep the plan's order
        counts = [row.count for row in ordered]
        ends = np.cumsum([0, *counts])
        self._check(int(ends[-1]), len(ordered))
        _put(self._tokens, _token_columns(ordered))
        lengths = [row.start + row.count for row in ordered]
        _put(self._rows[:2], np.array([[row.slot for row in ordered], lengths], dtype=np.int64))
        _put(self.cu_seqlens.unsqueeze(0), ends[None, :])
        sampling = [row for row in rows if row.output >= 0]
        last = {row.slot: int(end) - 1 for row, end in zip(ordered, ends[1:], strict=True)}
        columns = [[last[row.slot], row.slot, row.output] for row in sampling]
        _put(self._samples, np.array(columns, dtype=np.int64).reshape(-1, 3).T)
        draw = Draw.of([slots.sampling[row.slot] for row in sampling], [row.output for row in sampling])
        for buffer, group in zip(self._groups, draw.groups, strict=True):
            if group:
                _put(buffer.unsqueeze(0), np.array([group], dtype=np.int64))
        single = counts.count(1)
        return Shape(
            tokens=int(ends[-1]),
            rows=len(ordered),
            single=single,
            spans=tuple(
                (int(ends[number]), int(ends[number + 1]), lengths[number]) for number in range(single, len(ordered))
            ),
            longest=max([0, *lengths[:single]]),
            blocks=-(-max([0, *lengths]) // BLOCK_SIZE),
            waits_for=frozenset(row.slot for row in rows if not row.ids),
            sampled=tuple(row.slot for row in sampling),
            draw=draw,
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
            block_table=slots.block_table[:, : shape.blocks].index_select(0, self.row_slots[: shape.rows]),
            single=shape.single,
            spans=shape.spans,
            longest=shape.longest,
        )

    def sampling_rows(self, shape: Shape) -> Rows:
        """The rows that sample."""
        rows = shape.draw.rows
        return Rows.of(self.sample_slots[:rows], self.sample_outputs[:rows], shape.draw, self._groups)

    def token_ids(self, shape: Shape, slots: Slots) -> torch.Tensor:
        """Ids of the step's tokens; those that the host does not know yet come from the slots."""
        ids = self.ids[: shape.tokens]
        return torch.where(ids == FROM_SLOT, slots.last_sample[self.token_slots[: shape.tokens]], ids)

    def _check(self, tokens: int, rows: int) -> None:
        if tokens > self._tokens.shape[1] or rows >= self._rows.shape[1]:
            raise BadPlan(
                f"a plan has {tokens} tokens in {rows} rows, this rank has room for {self._tokens.shape[1]} tokens "
                f"in {self._rows.shape[1] - 1} rows"
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


def _put(buffer: torch.Tensor, values: npt.NDArray[np.int64]) -> None:
    buffer[:, : values.shape[1]].copy_(torch.from_numpy(values))
