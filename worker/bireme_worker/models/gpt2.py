"""GPT-2: learned positions, norms first, tied head; matrices are stored as inputs × outputs (transformers' Conv1D).

Query, key and value lie side by side in one matrix, all query heads first.
"""

import torch

from bireme_worker.checkpoints.config import ModelConfig
from bireme_worker.models.gpt import GPT, LayerNames, Names
from bireme_worker.models.layers.linear import Projection
from bireme_worker.models.shard import HeadShard, Shard
from bireme_worker.models.stages import StageLayers


def gpt2(config: ModelConfig, stage: StageLayers, shard: Shard, dtype: torch.dtype) -> GPT:
    """One stage on one rank."""
    return GPT(config, stage, shard, dtype, NAMES)


def _layer(number: int, config: ModelConfig, heads: HeadShard) -> LayerNames:
    name, width = f"transformer.h.{number}", config.num_attention_heads * config.head_dim
    first, last = heads.query.start * config.head_dim, heads.query.stop * config.head_dim
    return LayerNames(
        attention_norm=f"{name}.ln_1",
        qkv=tuple(
            Projection(
                f"{name}.attn.c_attn", 3 * width, slice(part * width + first, part * width + last), transposed=True
            )
            for part in range(3)
        ),
        out=f"{name}.attn.c_proj",
        mlp_norm=f"{name}.ln_2",
        up=f"{name}.mlp.c_fc",
        down=f"{name}.mlp.c_proj",
    )


NAMES = Names(_layer, "transformer.wte", positions="transformer.wpe", norm="transformer.ln_f", transposed=True)
