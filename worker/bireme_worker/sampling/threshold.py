"""The smallest score among those that make up a wanted weight, without a sort and without other shards' scores.

A radix search: three passes over 11, 11 and 10 bits of the scores' order-preserving integer form. Each pass sums the
weights per bucket, the sums are added over ranks, and the bucket in which the wanted weight is reached is opened next.
The cost is fixed, exact to the last bit of a score, and independent of how flat the distribution is.
"""

from typing import Final

import torch

from bireme_worker.parallel.communicator import Communicator

_PASSES: Final = ((21, 11, 11), (10, 11, 10), (0, 10, 0))
"""(shift, bits of this pass, bits of the next) from the highest bits down."""
LOWEST: Final = -(1 << 31)
"""The key below which nothing is."""


def ordered(scores: torch.Tensor) -> torch.Tensor:
    """Int32 keys that order like the float32 ``scores``; −0 counts as 0."""
    bits = (scores + 0.0).view(torch.int32)
    # Negative floats order backwards: flip all their bits but the sign.
    return (bits >> 31).bitwise_and_(0x7FFFFFFF).bitwise_xor_(bits)


def threshold(
    keys: torch.Tensor, weights: torch.Tensor, wanted: torch.Tensor, communicator: Communicator
) -> torch.Tensor:
    """The largest key such that entries with at least that key weigh ``wanted`` together; LOWEST where all weigh less.

    ``keys [rows, shard]`` from ``ordered``, ``weights [rows, shard]`` not negative, ``wanted [rows]``; returns
    ``[rows]``. Summed in float64: the cut then does not depend on the number of ranks, short of a tie at 1e-16.
    """
    wanted = wanted.to(torch.float64).unsqueeze(1)
    first = torch.full_like(keys[:, :1], LOWEST >> _PASSES[0][0], dtype=torch.int64)
    for shift, bits, following in _PASSES:
        sums = torch.stack([_sums(*row, shift, 1 << bits) for row in zip(keys, weights, first, strict=True)])
        communicator.all_reduce(sums)
        # reached[b]: weight of everything in bucket b or above it. The outermost two collect what lies outside.
        reached = sums.flip(1).cumsum(1).flip(1)
        bucket = ((reached[:, 1:-1] >= wanted).sum(1, keepdim=True) - 1).clamp_(min=0)
        first = (first + bucket) << following
    return first.squeeze(1)


def _sums(keys: torch.Tensor, weights: torch.Tensor, first: torch.Tensor, shift: int, buckets: int) -> torch.Tensor:
    """Weight per bucket from ``first`` on, with one more bucket on each side; a row at a time stays in the cache."""
    bucket = (keys >> shift).to(torch.int64).sub_(first).clamp_(-1, buckets).add_(1)
    return torch.zeros(buckets + 2, dtype=torch.float64, device=keys.device).scatter_add_(0, bucket, weights.double())
