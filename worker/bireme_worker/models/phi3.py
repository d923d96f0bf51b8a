"""Phi-3: a Llama whose checkpoint has queries, keys and values in one matrix, and gate and up in one."""

import torch

from bireme_worker.checkpoints.config import ModelConfig
from bireme_worker.models.layers.attention import Attention
from bireme_worker.models.layers.mlp import GatedMLP
from bireme_worker.models.llama import Llama, LlamaLayer, attention_size
from bireme_worker.models.shard import HeadShard, Shard


class Phi3Layer(LlamaLayer):
    """One decoder layer on one rank."""

    def __init__(self, config: ModelConfig, number: int, shard: Shard, heads: HeadShard, dtype: torch.dtype) -> None:
        super().__init__(config, number, shard, heads, dtype)
        name, hidden, inner = f"model.layers.{number}", config.hidden_size, config.intermediate_size
        activation = config.decoder.activation
        self.attention = Attention(f"{name}.self_attn", attention_size(config), heads, dtype, packed=True)
        self.mlp = GatedMLP(
            f"{name}.mlp", hidden, inner, shard, dtype, bias=config.mlp_bias, activation=activation, packed=True
        )


class Phi3(Llama):
    """One stage on one rank."""

    layer = Phi3Layer
