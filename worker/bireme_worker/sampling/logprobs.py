"""Log-probabilities of the raw logits, before penalties, temperature and filters."""

from dataclasses import dataclass

import torch

from bireme_worker.models.shard import VocabularyShard
from bireme_worker.parallel.communicator import Communicator


@dataclass(frozen=True, slots=True)
class Report:
    """For the reporting rows: ``chosen [rows]``, and the likeliest ids in falling order, ``[rows, top]`` each."""

    chosen: torch.Tensor
    values: torch.Tensor
    ids: torch.Tensor


def report(
    logits: torch.Tensor, ids: torch.Tensor, top: int, shard: VocabularyShard, communicator: Communicator
) -> Report:
    """Raw log-softmax of drawn ``ids [rows]`` and of the ``top`` likeliest, from ``logits [rows, shard]``."""
    best = communicator.all_gather(logits.amax(1)).amax(0)
    total = (logits - best.unsqueeze(1)).exp_().sum(1, dtype=torch.float64)
    communicator.all_reduce(total)
    normaliser = (best + total.log()).to(torch.float32)
    values, likeliest = _likeliest(logits, top, shard, communicator)
    chosen = _value_of(logits, ids, shard, communicator)
    return Report(chosen - normaliser, values - normaliser.unsqueeze(1), likeliest)


def _value_of(
    logits: torch.Tensor, ids: torch.Tensor, shard: VocabularyShard, communicator: Communicator
) -> torch.Tensor:
    local = ids - shard.start
    mine = (local >= 0) & (local < shard.count)
    value = torch.gather(logits, 1, torch.where(mine, local, 0).unsqueeze(1)).squeeze(1)
    value = torch.where(mine, value, 0.0)
    communicator.all_reduce(value)
    return value


def _likeliest(
    logits: torch.Tensor, top: int, shard: VocabularyShard, communicator: Communicator
) -> tuple[torch.Tensor, torch.Tensor]:
    offered, places = logits.topk(min(top, logits.shape[1]), dim=1)
    values = communicator.all_gather(offered)
    ids = communicator.all_gather(places + shard.start)
    # Ranks side by side; a stable sort keeps the lower shard first among equals.
    values, ids = values.transpose(0, 1).flatten(1), ids.transpose(0, 1).flatten(1)
    ordered, order = values.sort(dim=1, descending=True, stable=True)
    return ordered[:, :top], torch.gather(ids, 1, order)[:, :top]
