"""The best id over all shards: each rank offers its own best, everybody gets everybody's, the lower id wins a tie."""

import math
from typing import Final

import torch

from bireme_worker.models.shard import VocabularyShard
from bireme_worker.parallel.communicator import Communicator

_PART: Final = 512


def pick(
    scores: torch.Tensor, bad: torch.Tensor, shard: VocabularyShard, communicator: Communicator
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ids ``[rows]`` and whether any shard of a row is ``bad [rows]``, the same on all ranks."""
    # Values alone are many times faster to compare than values with places: so first the part that has the best one.
    parts = scores.view(len(scores), -1, math.gcd(scores.shape[1], _PART))
    part = parts.amax(2).argmax(1)
    value, place = parts[torch.arange(len(parts), device=parts.device), part].max(1)
    return agree(value, part * parts.shape[2] + place + shard.start, bad, communicator)


def agree(
    value: torch.Tensor, ids: torch.Tensor, bad: torch.Tensor, communicator: Communicator
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same from each shard's best ``value [rows]`` and its ``ids``.

    One exchange carries score, id and the flag; float64 holds all three exactly.
    """
    if communicator.size == 1:
        return ids, bad
    offers = communicator.all_gather(torch.stack((value.double(), ids.double(), bad.double()), dim=1))
    # max takes the first of equals: the lowest id inside a shard, the lowest shard here.
    winner = offers[:, :, 0].max(0).indices
    chosen = torch.gather(offers[:, :, 1], 0, winner.unsqueeze(0)).squeeze(0)
    return chosen.long(), offers[:, :, 2].amax(0) > 0
