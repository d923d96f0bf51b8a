"""From a checkpoint to a rank that can compute: configuration checked, weights read, cache and slots sized.

Everything that can be refused is refused before the first weight is read, with the numbers and the remedy.
"""

from contextlib import closing
from pathlib import Path

import torch

from bireme.wire.control import Checkpoint
from bireme_worker.checkpoints.config import ModelConfig
from bireme_worker.checkpoints.open import open_checkpoint
from bireme_worker.checkpoints.reader import CheckpointReader
from bireme_worker.identity import Identity
from bireme_worker.models.errors import ContextTooLong
from bireme_worker.models.kv_cache import KVCache
from bireme_worker.models.load import load
from bireme_worker.models.progress import Progress
from bireme_worker.models.registry import StageModel, build
from bireme_worker.models.shard import Shard
from bireme_worker.models.stages import stage_layers
from bireme_worker.rank.device import choose_device, dtype_of, kv_blocks
from bireme_worker.rank.inputs import Inputs
from bireme_worker.rank.runner import Runner
from bireme_worker.rank.slots import Slots
from bireme_worker.rank.staging import Wrap, check_fit


def load_runner(identity: Identity, rank: int, checkpoint: Checkpoint, progress: Progress) -> Runner:
    """Read this rank's share of ``checkpoint`` and return what computes with it.

    Raises:
        CheckpointError: the files are not what they must be (exit code 65).
        ConfigurationError: the deployment asks for what this model can't do (exit code 64).
    """
    with closing(open_checkpoint(Path(checkpoint.source))) as reader:
        return read_runner(identity, rank, reader, progress)


def read_runner(identity: Identity, rank: int, reader: CheckpointReader, progress: Progress) -> Runner:
    """The same from an open checkpoint.

    Raises:
        CheckpointError, ConfigurationError: as ``load_runner``.
    """
    device = choose_device(identity, rank)
    model = _describe(identity, rank, reader, device)
    longest = context_length(model.config, identity.max_model_length)
    if device.type == "cpu" or identity.kv_bytes:
        kv_blocks(model, identity.kv_bytes, device)  # refuse before anything is read
    load(model, reader, device)
    blocks = kv_blocks(model, identity.kv_bytes, device)
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
    runner = Runner(model, cache, slots, inputs, progress)
    runner.capture()
    return runner


def read_beside(identity: Identity, rank: int, checkpoint: Checkpoint, served: ModelConfig, wrap: Wrap) -> StageModel:
    """Read this rank's share of another checkpoint, which must fit where the ``served`` one lies.

    Raises:
        CheckpointError: the files are not what they must be, or of another shape.
    """
    with closing(wrap(open_checkpoint(Path(checkpoint.source)))) as reader:
        check_fit(ModelConfig.parse(reader.config, reader.generation_config), served)
        device = choose_device(identity, rank)
        model = _describe(identity, rank, reader, device)
        # A GPU has no room for two models: the second one waits in the host's memory.
        load(model, reader, torch.device("cpu"), packed=device.type == "cpu")
    return model


def _describe(identity: Identity, rank: int, reader: CheckpointReader, device: torch.device) -> StageModel:
    config = ModelConfig.parse(reader.config, reader.generation_config)
    layers = stage_layers(config, identity.stage, identity.stages, identity.stage_layers)
    return build(config, layers, Shard(rank, identity.tensor), dtype_of(identity.dtype, device))


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
