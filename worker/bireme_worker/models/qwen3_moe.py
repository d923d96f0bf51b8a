"""Qwen3-MoE: a Qwen3 whose MLP is a mixture of experts; whether the chosen ones' weights sum to 1 is a setting."""

from dataclasses import replace

import torch

from bireme_worker.checkpoints.config import ModelConfig
from bireme_worker.models.layers.experts import MixtureOfExperts
from bireme_worker.models.llama import Llama
from bireme_worker.models.qwen3 import Qwen3Layer
from bireme_worker.models.shard import HeadShard, Shard


class Qwen3MoeLayer(Qwen3Layer):
    """One decoder layer on one rank."""

    def __init__(self, config: ModelConfig, number: int, shard: Shard, heads: HeadShard, dtype: torch.dtype) -> None:
        # As in Mixtral.
        super().__init__(replace(config, intermediate_size=shard.size), number, shard, heads, dtype)
        assert config.experts is not None
        name, names = f"model.layers.{number}.mlp", ("gate_proj", "up_proj", "down_proj")
        self.mlp = MixtureOfExperts(name, names, config.experts, config.hidden_size, shard, dtype=dtype)


class Qwen3Moe(Llama):
    """One stage on one rank."""

    layer = Qwen3MoeLayer
