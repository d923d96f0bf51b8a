"""Mixtral: a Llama whose MLP is a mixture of experts; the weights of the chosen ones sum to 1."""

from dataclasses import replace

import torch

from bireme_worker.checkpoints.config import ModelConfig
from bireme_worker.models.layers.experts import MixtureOfExperts
from bireme_worker.models.llama import Llama, LlamaLayer
from bireme_worker.models.shard import HeadShard, Shard


class MixtralLayer(LlamaLayer):
    """One decoder layer on one rank."""

    def __init__(self, config: ModelConfig, number: int, shard: Shard, heads: HeadShard, dtype: torch.dtype) -> None:
        # The plain MLP that this makes is thrown away, so its size shall refuse nothing.
        super().__init__(replace(config, intermediate_size=shard.size), number, shard, heads, dtype)
        assert config.experts is not None
        name, names = f"model.layers.{number}.block_sparse_moe", ("w1", "w3", "w2")
        self.mlp = MixtureOfExperts(name, names, config.experts, config.hidden_size, shard, dtype=dtype)


class Mixtral(Llama):
    """One stage on one rank."""

    layer = MixtralLayer
