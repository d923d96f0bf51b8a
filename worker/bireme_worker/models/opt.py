"""OPT, up to 175B: learned positions whose table has two rows before the first; norms first, or last in some sizes."""

import torch

from bireme_worker.checkpoints.config import ModelConfig
from bireme_worker.models.gpt import GPT, LayerNames, Names, three
from bireme_worker.models.shard import HeadShard, Shard
from bireme_worker.models.stages import StageLayers

BASE = "model.decoder"


def opt(config: ModelConfig, stage: StageLayers, shard: Shard, dtype: torch.dtype) -> GPT:
    """One stage on one rank; the variant with the norms last has none behind the layers."""
    assert config.variant is not None
    norm = f"{BASE}.final_layer_norm" if config.variant.norm_first else ""
    names = Names(_layer, f"{BASE}.embed_tokens", positions=f"{BASE}.embed_positions", norm=norm)
    return GPT(config, stage, shard, dtype, names)


def _layer(number: int, config: ModelConfig, heads: HeadShard) -> LayerNames:
    name = f"{BASE}.layers.{number}"
    return LayerNames(
        attention_norm=f"{name}.self_attn_layer_norm",
        qkv=three(f"{name}.self_attn", config, heads, ("q_proj", "k_proj", "v_proj")),
        out=f"{name}.self_attn.out_proj",
        mlp_norm=f"{name}.final_layer_norm",
        up=f"{name}.fc1",
        down=f"{name}.fc2",
    )
