"""Attention whose queries and keys are normed over the channels of each head before they turn (Qwen3, Gemma 3)."""

import torch

from bireme_worker.models.kv_cache import LayerCache
from bireme_worker.models.layers.attention import Attention, AttentionSize, ForwardPass
from bireme_worker.models.layers.norm import RMSNorm
from bireme_worker.models.shard import HeadShard
from bireme_worker.models.weight import Weight


class NormedAttention(Attention):
    """``from_one``: as in `RMSNorm`."""

    def __init__(
        self,
        name: str,
        size: AttentionSize,
        shard: HeadShard,
        dtype: torch.dtype,
        eps: float,
        *,
        from_one: bool = False,
    ) -> None:
        super().__init__(name, size, shard, dtype)
        self._queries, self._keys = shard.query_count, shard.kv_count
        self._query_norm = RMSNorm(f"{name}.q_norm", size.head_dim, eps, dtype, from_one=from_one)
        self._key_norm = RMSNorm(f"{name}.k_norm", size.head_dim, eps, dtype, from_one=from_one)

    @property
    def weights(self) -> list[Weight]:
        """Parameters in load order."""
        return [*super().weights, self._query_norm.weight, self._key_norm.weight]

    def __call__(self, x: torch.Tensor, cache: LayerCache, forward: ForwardPass) -> torch.Tensor:
        qkv = self.qkv(x).view(x.shape[0], self._heads, self._head_dim)
        turned = self._queries + self._keys
        queries, keys = self._query_norm(qkv[:, : self._queries]), self._key_norm(qkv[:, self._queries : turned])
        normed = torch.cat((queries, keys, qkv[:, turned:]), dim=1)
        return self.out(forward.step.attend(forward.step.store(normed, cache), cache), forward.communicator)
