"""From a checkpoint to a rank that can compute: configuration checked, weights read, cache and slots sized.

Everything that can be refused is refused before the first weight is read, with the numbers and the remedy.
"""

from contextlib import closing
from pathlib import Path
from typing import Final

import torch

from bireme.wire.control import Checkpoint
from bireme_worker.checkpoints.config import ModelConfig
from bireme_worker.checkpoints.open import open_checkpoint
from bireme_worker.checkpoints.reader import CheckpointReader
from bireme_worker.identity import Identity
from bireme_worker.models.errors import ConfigurationError, ContextTooLong
from bireme_worker.models.kv_cache import BLOCK_SIZE, KVCache, block_bytes
from bireme_worker.models.load import load
from bireme_worker.models.progress import Progress
from bireme_worker.models.registry import StageModel, build
from bireme_worker.models.shard import Shard
from bireme_worker.models.stages import stage_layers
from bireme_worker.rank.inputs import Inputs
from bireme_worker.rank.runner import Runner
from bireme_worker.rank.slots import Slots
from bireme_worker.rank.staging import Wrap, check_fit

CPU_KV_BYTES: Final = 48 << 20
"""Default cache of a CPU rank: a laptop runs several ranks, and `engine.kvCache.bytes` asks for more."""
LEAST_BLOCKS: Final = 64
"""Blocks of the smallest default cache, block 0 (padding) included."""
DTYPES: Final = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
CPU_DTYPE: Final = torch.float32
"""`auto` on a CPU: bfloat16 is fast on few of them, float16 on none."""


def load_runner(identity: Identity, rank: int, checkpoint: Checkpoint, progress: Progress) -> Runner:
    """Read this rank's share of ``checkpoint`` and return what computes with it.

    Raises:
        CheckpointError: the files are not what they must be (exit code 65).
        ConfigurationError: the deployment asks for what this model can't do (exit code 64).
    """
    device = torch.device("cpu")
    with closing(open_checkpoint(Path(checkpoint.source))) as reader:
        model = _describe(identity, rank, reader)
        longest = context_length(model.config, identity.max_model_length)
        blocks = kv_blocks(model, identity.kv_bytes)
        load(model, reader, device)
    config, layers = model.config, model.stage
    cache = KVCache(
        layers=layers.count,
        blocks=blocks,
        heads=model.heads.kv_count,
        head_dim=config.head_dim,
        dtype=model.dtype,
        device=device,
    )
    rows = identity.max_running_requests + 1
    slots = Slots(rows, longest, blocks, model.vocabulary if layers.samples else None, device)
    inputs = Inputs(max(identity.max_batched_tokens, rows), rows, device)
    return Runner(model, cache, slots, inputs, progress)


def read_beside(identity: Identity, rank: int, checkpoint: Checkpoint, served: ModelConfig, wrap: Wrap) -> StageModel:
    """Read this rank's share of another checkpoint, which must fit where the ``served`` one lies.

    Raises:
        CheckpointError: the files are not what they must be, or of another shape.
    """
    with closing(wrap(open_checkpoint(Path(checkpoint.source)))) as reader:
        check_fit(ModelConfig.parse(reader.config, reader.generation_config), served)
        model = _describe(identity, rank, reader)
        load(model, reader, torch.device("cpu"))
    return model


def _describe(identity: Identity, rank: int, reader: CheckpointReader) -> StageModel:
    config = ModelConfig.parse(reader.config, reader.generation_config)
    layers = stage_layers(config, identity.stage, identity.stages, identity.stage_layers)
    return build(config, layers, Shard(rank, identity.tensor), dtype_of(identity.dtype))


def context_length(config: ModelConfig, wanted: int) -> int:
    """The longest context, in tokens; ``wanted`` 0 takes the model's.

    Raises:
        ContextTooLong: more than the model was made for.
    """
    if wanted > config.max_position_embeddings:
        raise ContextTooLong(
            f"engine.maxModelLength is {wanted}, the model was made for {config.max_position_embeddings} tokens: "
            f"set it to at most {config.max_position_embeddings}"
        )
    return wanted or config.max_position_embeddings


def dtype_of(name: str) -> torch.dtype:
    """The dtype that weights, cache and hidden states have on this device.

    Raises:
        ConfigurationError: no such dtype.
    """
    if name not in {"auto", *DTYPES}:
        raise ConfigurationError(f"model.dtype is {name!r}: set it to auto, {', '.join(DTYPES)}")
    return DTYPES.get(name, CPU_DTYPE)


def kv_blocks(model: StageModel, kv_bytes: int) -> int:
    """Blocks that fit ``kv_bytes`` on this rank; 0 takes the default.

    Raises:
        ConfigurationError: not even one block beside the padding block fits.
    """
    one = block_bytes(model.stage.count, model.heads.kv_count, model.config.head_dim, model.dtype)
    if kv_bytes == 0:
        return max(CPU_KV_BYTES // one, LEAST_BLOCKS)
    if kv_bytes < 2 * one:
        raise ConfigurationError(
            f"engine.kvCache.bytes is {kv_bytes}, two blocks of {BLOCK_SIZE} tokens take {2 * one} on a rank: "
            "set it higher"
        )
    return kv_bytes // one
