"""The flat description of one step's tokens that attention works from.

Tokens of all rows lie one after another; everything else is offsets and lengths. Rows with one token come first and
form the batched part, longer rows follow. What a kernel needs is in tensors; what chooses shapes is in plain integers,
known to the host from the plan, so that nobody ever asks the device.
"""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Batch:
    """One step.

    Attributes:
        positions: ``[tokens]`` position of each token in its sequence.
        slot_mapping: ``[tokens]`` where its key and value go: block id × block size + offset.
        cu_seqlens: ``[rows + 1]`` offset of each row's first token.
        seq_lens: ``[rows]`` context length of each row, its new tokens included.
        slots: ``[rows]`` slot of each row.
        block_table: ``[slots, blocks]`` block ids of every slot, padded with block 0, whatever the step.
        single: rows with one token; they come first.
        spans: for each later row (first token, end, context length), as host integers.
        lengths: context lengths of the single rows, rising.
    """

    positions: torch.Tensor
    slot_mapping: torch.Tensor
    cu_seqlens: torch.Tensor
    seq_lens: torch.Tensor
    slots: torch.Tensor
    block_table: torch.Tensor
    single: int
    spans: tuple[tuple[int, int, int], ...]
    lengths: tuple[int, ...]
