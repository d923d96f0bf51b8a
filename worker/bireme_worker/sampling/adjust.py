"""Changes of the logits before a draw, on the shard: penalties, bias, stop ids that must wait, masks.

Order: repetition penalty over prompt and outputs, frequency and presence penalties over outputs, bias, held stop ids,
masks.
"""

from collections.abc import Sequence

import numpy as np
import torch

from bireme_worker.models.shard import VocabularyShard
from bireme_worker.models.transfer import upload
from bireme_worker.sampling.state import SamplingState


def penalise(logits: torch.Tensor, slots: torch.Tensor, state: SamplingState) -> torch.Tensor:
    """Return penalised ``logits [rows, shard]``; ``slots [rows]``.

    Repetition divides positive logits and multiplies negative ones; frequency subtracts per occurrence, presence once.
    """
    counts = state.counts.data.index_select(0, slots)
    present = counts > 0
    seen = present | state.in_prompt.data.index_select(0, slots)
    factor = torch.where(seen, state.repetition[slots].unsqueeze(1), 1.0)
    logits = torch.where(logits > 0, logits / factor, logits * factor)
    logits.sub_(counts * state.frequency[slots].unsqueeze(1))
    return logits.sub_(present * state.presence[slots].unsqueeze(1))


def bias(logits: torch.Tensor, slots: torch.Tensor, state: SamplingState) -> torch.Tensor:
    """Return ``logits [rows, shard]`` plus each request's bias."""
    return logits + state.bias.data.index_select(0, slots)


def hold_stops(logits: torch.Tensor, slots: torch.Tensor, state: SamplingState) -> torch.Tensor:
    """Return ``logits [rows, shard]`` in which the stop ids can't be drawn."""
    return logits.masked_fill(state.stops.data.index_select(0, slots), -torch.inf)


def mask(logits: torch.Tensor, masks: Sequence[bytes], shard: VocabularyShard) -> torch.Tensor:
    """Return ``logits [rows, shard]`` in which only ids whose bit is set in the row's mask can be drawn."""
    bits = np.unpackbits(np.frombuffer(b"".join(masks), np.uint8).reshape(len(masks), -1), axis=1, bitorder="little")
    forbidden = np.ones(logits.shape, dtype=np.bool_)
    allowed = bits[:, shard.start : shard.start + shard.count]
    forbidden[:, : allowed.shape[1]] = allowed == 0
    return logits.masked_fill(upload(forbidden, logits.device), -torch.inf)
