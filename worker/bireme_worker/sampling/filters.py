"""Top-k, then top-p over what top-k left, then min-p: as transformers and vLLM define them.

Each keeps every id whose score is at least a threshold, so ids that tie with the last one kept stay too, and the
result does not depend on the order of ids, the batch or the number of ranks.
"""

from typing import Final

import torch

from bireme_worker.parallel.communicator import Communicator
from bireme_worker.sampling.draw import Draw
from bireme_worker.sampling.state import SamplingState
from bireme_worker.sampling.threshold import ordered, threshold

EVERYTHING: Final = 1 << 40
"""More ids than any vocabulary has: no top-k."""


def keep(
    scores: torch.Tensor, slots: torch.Tensor, state: SamplingState, draw: Draw, communicator: Communicator
) -> torch.Tensor:
    """Set what the filters of ``slots`` cut of ``scores [rows, shard]`` (logits / temperature) to minus infinity."""
    best = communicator.all_gather(scores.amax(1)).amax(0).unsqueeze(1)
    weights = (scores - best).exp_()
    keys = ordered(scores)
    kept = torch.ones_like(scores, dtype=torch.bool)
    if draw.top_k:
        k = state.top_k[slots]
        cut = threshold(keys, kept, torch.where(k > 0, k, EVERYTHING), communicator)
        kept = keys >= cut.unsqueeze(1)
        weights = weights.mul_(kept)
    if draw.top_p:
        cut = threshold(keys, weights, _mass(weights, state.top_p[slots], communicator), communicator)
        kept = kept.logical_and_(keys >= cut.unsqueeze(1))
    if draw.min_p:
        kept = kept.logical_and_(weights >= state.min_p[slots].unsqueeze(1))
    return scores.masked_fill_(kept.logical_not_(), -torch.inf)


def _mass(weights: torch.Tensor, top_p: torch.Tensor, communicator: Communicator) -> torch.Tensor:
    """The weight that ``top_p`` asks for; a request without it asks for more than there is."""
    total = weights.sum(1, dtype=torch.float64)
    communicator.all_reduce(total)
    return torch.where(top_p < 1, top_p * total, torch.inf)
