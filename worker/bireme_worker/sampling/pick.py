"""The best id over all shards: each rank offers its own best, everybody gets everybody's, the lower id wins a tie."""

import torch

from bireme_worker.models.shard import VocabularyShard
from bireme_worker.parallel.communicator import Communicator


def pick(
    scores: torch.Tensor, bad: torch.Tensor, shard: VocabularyShard, communicator: Communicator
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ids ``[rows]`` and whether any shard of a row is ``bad [rows]``, the same on all ranks.

    One exchange carries score, id and the flag; float64 holds all three exactly.
    """
    value, place = scores.max(1)
    offer = torch.stack((value.double(), (place + shard.start).double(), bad.double()), dim=1)
    offers = communicator.all_gather(offer)
    # max takes the first of equals: the lowest id inside a shard, the lowest shard here.
    winner = offers[:, :, 0].max(0).indices
    ids = torch.gather(offers[:, :, 1], 0, winner.unsqueeze(0)).squeeze(0)
    return ids.long(), offers[:, :, 2].amax(0) > 0
