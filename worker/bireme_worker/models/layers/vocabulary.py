"""Embedding and output head, cut along the vocabulary.

Each rank holds some rows. An embedding looks up its own ids, leaves zeros elsewhere and sums over ranks. The head keeps
its logits sharded, because the sampler needs far less than all of them; padding rows score minus infinity.
"""

import torch
from torch.nn import functional

from bireme_worker.models.matrix import multiply
from bireme_worker.models.shard import VocabularyShard
from bireme_worker.models.weight import Piece, Weight
from bireme_worker.parallel.communicator import Communicator


def vocabulary_weight(
    name: str, size: tuple[int, int], shard: VocabularyShard, dtype: torch.dtype, *, multiplies: bool
) -> Weight:
    """One rank's rows of a matrix of ``size`` (vocabulary, hidden), padded with zero rows."""
    pieces = (Piece(name, size, (slice(shard.start, shard.start + shard.count),)),)
    return Weight((shard.width, size[1]), dtype, pieces if shard.count else (), multiplies=multiplies)


class VocabularyEmbedding:
    """``ids [tokens] → [tokens, hidden]``."""

    def __init__(self, weight: Weight, shard: VocabularyShard) -> None:
        self.weight = weight
        self._shard = shard

    def __call__(self, ids: torch.Tensor, communicator: Communicator) -> torch.Tensor:
        if communicator.size == 1:
            return functional.embedding(ids, self.weight.tensor)
        local = ids - self._shard.start
        mine = (local >= 0) & (local < self._shard.count)
        hidden = functional.embedding(torch.where(mine, local, 0), self.weight.tensor) * mine.unsqueeze(1)
        communicator.all_reduce(hidden)
        return hidden


class VocabularyHead:
    """``[rows, hidden] → logits [rows, shard.width]`` in float32; padding is minus infinity.

    ``cap``: logits are ``cap · tanh(logit / cap)``; 0 for none.
    """

    def __init__(self, weight: Weight, shard: VocabularyShard, cap: float = 0.0) -> None:
        self.weight = weight
        self._shard = shard
        self._cap = cap

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        logits = multiply(hidden, self.weight.tensor, self._shard.width).float()
        if self._cap:
            logits = logits.div_(self._cap).tanh_().mul_(self._cap)
        logits[:, self._shard.count :] = -torch.inf
        return logits
