"""BLOOM, up to 176B: ALiBi instead of positions, a norm behind the embedding, tied head.

The fused matrix has query, key and value of one head beside each other, head after head; a rank reads its heads' rows
in the order in which attention wants them.
"""

import torch

from bireme_worker.checkpoints.config import ModelConfig
from bireme_worker.models.errors import ConfigurationError
from bireme_worker.models.gpt import GPT, LayerNames, Names
from bireme_worker.models.layers.alibi import AlibiBackend
from bireme_worker.models.layers.linear import Projection
from bireme_worker.models.shard import HeadShard, Shard
from bireme_worker.models.stages import StageLayers


class Bloom(GPT):
    """One stage on one rank."""

    def __init__(self, config: ModelConfig, stage: StageLayers, shard: Shard, dtype: torch.dtype) -> None:
        super().__init__(config, stage, shard, dtype, NAMES)
        self.backend = AlibiBackend(self.heads, config.num_attention_heads, dtype, torch.device("cpu"))

    def place(self, device: torch.device) -> None:
        """Only the CPU has attention with ALiBi so far.

        Raises:
            ConfigurationError: another device.
        """
        if device.type != "cpu":
            raise ConfigurationError("BLOOM runs on the CPU only so far: set BIREME_DEVICE to cpu")


def _layer(number: int, config: ModelConfig, heads: HeadShard) -> LayerNames:
    name, dim = f"transformer.h.{number}", config.head_dim
    fused = f"{name}.self_attention.query_key_value"
    starts = [(3 * head + part) * dim for part in range(3) for head in range(heads.query.start, heads.query.stop)]
    size = 3 * config.num_attention_heads * dim
    return LayerNames(
        attention_norm=f"{name}.input_layernorm",
        qkv=tuple(Projection(fused, size, slice(start, start + dim)) for start in starts),
        out=f"{name}.self_attention.dense",
        mlp_norm=f"{name}.post_attention_layernorm",
        up=f"{name}.mlp.dense_h_to_4h",
        down=f"{name}.mlp.dense_4h_to_h",
    )


NAMES = Names(
    _layer,
    "transformer.word_embeddings",
    embedding_norm="transformer.word_embeddings_layernorm",
    norm="transformer.ln_f",
)
