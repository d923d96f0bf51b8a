"""What each slot carries for sampling, in tensors at fixed addresses, set at admission.

Counts, bias and held stop ids need a row of the vocabulary per slot. Those tables are reserved at the first request
that needs one and only the rows of such slots are ever touched, so on the CPU they take no memory for the others.
"""

from typing import Final

import numpy as np
import torch

from bireme.wire.plan import Admit, Sampling, unpack_ids
from bireme_worker.models.shard import VocabularyShard
from bireme_worker.models.transfer import upload
from bireme_worker.sampling.draw import heat, penalises

_LEAST_TOP_P: Final = 1e-30
"""Less would be 0 in float32, and nothing would be kept."""
_LOW: Final = 0xFFFFFFFF


class VocabularyTable:
    """``[slots, vocabulary shard]``, reserved at first use; a row is valid after ``reset``."""

    def __init__(self, slots: int, width: int, dtype: torch.dtype, device: torch.device) -> None:
        self._shape = (slots, width)
        self._dtype = dtype
        self._device = device
        self._data: torch.Tensor | None = None

    @property
    def data(self) -> torch.Tensor:
        """The whole table."""
        if self._data is None:
            self._data = torch.empty(self._shape, dtype=self._dtype, device=self._device)
        return self._data

    def reset(self, slot: int) -> torch.Tensor:
        """Zero the row of ``slot`` and return it."""
        return self.data[slot].zero_()


class SamplingState:
    """Sampling constants and counts of all slots on one rank's vocabulary shard."""

    def __init__(self, slots: int, shard: VocabularyShard, device: torch.device) -> None:
        self.shard = shard
        self._device = device
        self._numbers = torch.zeros((6, slots), dtype=torch.float32, device=device)
        self._integers = torch.zeros((4, slots), dtype=torch.int64, device=device)
        self.temperature, self.top_p, self.min_p, self.repetition, self.frequency, self.presence = self._numbers
        self.top_k, self.seed_low, self.seed_high, self.choice = self._integers
        self.counts = VocabularyTable(slots, shard.width, torch.int32, device)
        self.in_prompt = VocabularyTable(slots, shard.width, torch.bool, device)
        self.bias = VocabularyTable(slots, shard.width, torch.float32, device)
        self.stops = VocabularyTable(slots, shard.width, torch.bool, device)

    def admit(self, admit: Admit) -> None:
        """Take over the constants of a request and count what it has already."""
        one, slot = admit.sampling, admit.slot
        numbers = (heat(one), max(one.top_p, _LEAST_TOP_P), one.min_p, *_penalties(one))
        integers = (one.top_k, one.seed & _LOW, one.seed >> 32 & _LOW, one.choice)
        self._numbers[:, slot] = upload(np.array(numbers, dtype=np.float32), self._device)
        self._integers[:, slot] = upload(np.array(integers, dtype=np.int64), self._device)
        if penalises(one):
            ids, ones = self._local(list(unpack_ids(admit.outputs))), torch.ones_like(self.counts.data[0, :1])
            self.counts.reset(slot).index_put_((ids,), ones, accumulate=True)
            self.in_prompt.reset(slot)[self._local(list(unpack_ids(admit.prompt)))] = True
        if one.logit_bias:
            bias = self.bias.reset(slot)
            for token, value in one.logit_bias.items():
                bias[self._local([token])] = value
        if one.min_tokens > 0:
            self.stops.reset(slot)[self._local(list(one.stop_ids))] = True

    def count(self, slots: torch.Tensor, ids: torch.Tensor) -> None:
        """Count drawn ``ids [rows]`` of penalised ``slots [rows]``."""
        local = ids - self.shard.start
        mine = (local >= 0) & (local < self.shard.count)
        places = (slots, torch.where(mine, local, 0))
        self.counts.data.index_put_(places, mine.to(torch.int32), accumulate=True)

    def _local(self, ids: list[int]) -> torch.Tensor:
        """Those of ``ids`` that this rank's shard holds, as places in it."""
        start, end = self.shard.start, self.shard.start + self.shard.count
        held = [token - start for token in ids if start <= token < end]
        return upload(np.array(held, dtype=np.int64), self._device)


def _penalties(sampling: Sampling) -> tuple[float, float, float]:
    return sampling.repetition_penalty, sampling.frequency_penalty, sampling.presence_penalty
