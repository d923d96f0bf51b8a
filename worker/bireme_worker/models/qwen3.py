"""Qwen3: a Llama whose queries and keys are normed head by head before they turn."""

import torch

from bireme_worker.checkpoints.config import ModelConfig
from bireme_worker.models.layers.normed import NormedAttention
from bireme_worker.models.llama import Llama, LlamaLayer, attention_size
from bireme_worker.models.shard import HeadShard, Shard


class Qwen3Layer(LlamaLayer):
    """One decoder layer on one rank."""

    def __init__(self, config: ModelConfig, number: int, shard: Shard, heads: HeadShard, dtype: torch.dtype) -> None:
        super().__init__(config, number, shard, heads, dtype)
        name = f"model.layers.{number}.self_attn"
        self.attention = NormedAttention(name, attention_size(config), heads, dtype, config.rms_norm_eps)


class Qwen3(Llama):
    """One stage on one rank."""

    layer = Qwen3Layer
