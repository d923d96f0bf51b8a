"""Gemma 2 and 3 (text): norms before and behind each sublayer, embeddings scaled by the root of their size.

Gemma 2 caps scores and logits softly, Gemma 3 norms queries and keys instead; both let most layers see a window only.
All of that but the norms is in `Decoder`, which the frame reads.
"""

import torch

from bireme_worker.checkpoints.config import ModelConfig
from bireme_worker.models.kv_cache import LayerCache
from bireme_worker.models.layers.attention import ForwardPass
from bireme_worker.models.layers.norm import RMSNorm
from bireme_worker.models.layers.normed import NormedAttention
from bireme_worker.models.llama import Llama, LlamaLayer, attention_size
from bireme_worker.models.shard import HeadShard, Shard
from bireme_worker.models.weight import Weight
from bireme_worker.parallel.communicator import Communicator


class Gemma2Layer(LlamaLayer):
    """One decoder layer on one rank."""

    def __init__(self, config: ModelConfig, number: int, shard: Shard, heads: HeadShard, dtype: torch.dtype) -> None:
        super().__init__(config, number, shard, heads, dtype)
        names = ("input", "post_attention", "pre_feedforward", "post_feedforward")
        self.attention_norm, self.after_attention, self.mlp_norm, self.after_mlp = (
            RMSNorm(
                f"model.layers.{number}.{name}_layernorm",
                config.hidden_size,
                config.rms_norm_eps,
                dtype,
                from_one=True,
            )
            for name in names
        )

    @property
    def weights(self) -> list[Weight]:
        """Parameters in load order."""
        return [*super().weights, self.after_attention.weight, self.after_mlp.weight]

    def __call__(
        self, x: torch.Tensor, delta: torch.Tensor | None, cache: LayerCache, forward: ForwardPass
    ) -> torch.Tensor:
        """As a Llama's; what each sublayer adds is normed once more."""
        attended = self.attention(self.attention_norm.add(x, delta), cache, forward)
        normed = self.mlp_norm.add(x, self.after_attention(attended))
        return self.after_mlp(self.mlp(normed, forward.communicator))


class Gemma3Layer(Gemma2Layer):
    """One decoder layer on one rank."""

    def __init__(self, config: ModelConfig, number: int, shard: Shard, heads: HeadShard, dtype: torch.dtype) -> None:
        super().__init__(config, number, shard, heads, dtype)
        name, eps = f"model.layers.{number}.self_attn", config.rms_norm_eps
        self.attention = NormedAttention(name, attention_size(config), heads, dtype, eps, from_one=True)


class Gemma2(Llama):
    """One stage on one rank."""

    layer = Gemma2Layer
    norm_from_one = True

    def embed(self, ids: torch.Tensor, communicator: Communicator) -> torch.Tensor:
        """``[tokens] → [tokens, hidden]``, on the first stage; the factor is rounded to the dtype like the weights."""
        factor = float(torch.tensor(self.config.hidden_size**0.5, dtype=self.dtype))
        return super().embed(ids, communicator).mul_(factor)


class Gemma3(Gemma2):
    """One stage on one rank."""

    layer = Gemma3Layer
