"""From a checkpoint to a rank that can compute: configuration checked, weights read, cache and slots sized.

Everything that can be refused is refused before the first weight is read, with the numbers and the remedy.
"""

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from bireme.wire.control import Checkpoint
from bireme_worker.checkpoints.adapter import read_adapter
from bireme_worker.checkpoints.config import ModelConfig
from bireme_worker.checkpoints.open import open_checkpoint
from bireme_worker.checkpoints.reader import CheckpointReader
from bireme_worker.identity import Identity
from bireme_worker.models.errors import ContextTooLong
from bireme_worker.models.kv_cache import KVCache
from bireme_worker.models.load import load
from bireme_worker.models.lora import attach
from bireme_worker.models.progress import Progress
from bireme_worker.models.registry import StageModel, build
from bireme_worker.models.shard import Shard
from bireme_worker.models.stages import stage_layers
from bireme_worker.rank.device import choose_device, dtype_of, kv_blocks
from bireme_worker.rank.inputs import Inputs
from bireme_worker.rank.phases import Phases
from bireme_worker.rank.runner import Runner
from bireme_worker.rank.slots import Slots
from bireme_worker.rank.staging import Wrap, check_fit
from bireme_worker.shards.layout import check_layout
from bireme_worker.shards.rank import Where, load_rank

if TYPE_CHECKING:
    from bireme_worker.parallel.exchange import Exchange


def load_runner(
    identity: Identity, rank: int, checkpoint: Checkpoint, progress: Progress, phases: Phases | None = None
) -> Runner:
    """Read this rank's share of ``checkpoint`` and return what computes with it; ``phases`` are told.

    Raises:
        CheckpointError: the files are not what they must be (exit code 65).
        ConfigurationError: the deployment asks for what this model can't do (exit code 64).
    """
    with closing(open_checkpoint(Path(checkpoint.source))) as reader:
        return read_runner(identity, rank, reader, progress, Path(checkpoint.source), phases=phases)


def read_runner(
    identity: Identity,
    rank: int,
    reader: CheckpointReader,
    progress: Progress,
    source: Path | None = None,
    *,
    phases: Phases | None = None,
) -> Runner:
    """The same from an open checkpoint; ``source``, where it lies, lets it be cached.

    Raises:
        CheckpointError, ConfigurationError: as ``load_runner``.
    """
    phases = phases or Phases()
    device = choose_device(identity, rank)
    if device.type == "cuda":
        torch.cuda.set_device(device)
        torch.cuda.synchronize()  # the context, which takes a while
    phases.end("device")
    model = _describe(identity, rank, reader, device)
    longest = context_length(model.config, identity.max_model_length)
    if device.type == "cpu" or identity.kv_bytes:
        kv_blocks(model, identity, device)  # refuse before anything is read
    if source is None:
        load(model, reader, device, quantization=identity.quantization)
    else:
        load_rank(identity, source, model, reader, Where(rank, device))
    _adapt(model, identity, device)
    phases.end("weights")
    links = _links(model, identity, rank, device)
    blocks = kv_blocks(model, identity, device)
    config, layers = model.config, model.stage
    cache = KVCache(
        layers=layers.count,
        blocks=blocks,
        heads=model.heads.kv_count,
        head_dim=config.head_dim,
        dtype=model.dtype,
        device=device,
        packed=identity.kv_dtype,
    )
    rows = identity.max_running_requests + 1
    vocabulary = model.vocabulary if layers.samples and not config.is_encoder else None
    slots = Slots(rows, longest, blocks, vocabulary, device, paged=not config.is_encoder)
    inputs = Inputs(max(identity.max_batched_tokens, rows), rows, device, identity.speculation)
    runner = Runner(model, cache, slots, inputs, progress, links=links)
    phases.end("cache")
    count = runner.compile_ahead()
    phases.end(f"{count} kernels")
    runner.capture()
    phases.end("graphs")
    return runner


def _links(model: StageModel, identity: Identity, rank: int, device: torch.device) -> "Exchange | None":
    """A GPU's open memory, where it has peers."""
    if device.type == "cpu" or identity.tensor * identity.stages == 1:
        return None
    from bireme_worker.parallel.exchange import Exchange  # noqa: PLC0415  Triton is there only beside a GPU

    rows = identity.max_running_requests + 1
    tokens = max(identity.max_batched_tokens, rows) if identity.stages > 1 else 0
    hidden = tokens * model.config.hidden_size * model.dtype.itemsize
    return Exchange(rank, identity.tensor, hidden=hidden, ids=8 * rows * (1 + identity.speculation), device=device)


def read_beside(identity: Identity, rank: int, checkpoint: Checkpoint, served: ModelConfig, wrap: Wrap) -> StageModel:
    """Read this rank's share of another checkpoint, which must fit where the ``served`` one lies.

    Raises:
        CheckpointError: the files are not what they must be, or of another shape.
    """
    with closing(wrap(open_checkpoint(Path(checkpoint.source)))) as reader:
        check_fit(ModelConfig.parse(reader.config, reader.generation_config), served)
        device = choose_device(identity, rank)
        model = _describe(identity, rank, reader, device)
        check_layout(Path(checkpoint.source), model.config, identity.tensor, identity.stages, identity.stage_layers)
        # A GPU has no room for two models: the second one waits in the host's memory.
        host = torch.device("cpu")
        load(model, reader, host, packed=device.type == "cpu", quantization=identity.quantization)
    if device.type == "cpu":  # on a GPU the served model stays in its place, and its adapters with it
        _adapt(model, identity, device)
    return model


def _adapt(model: StageModel, identity: Identity, device: torch.device) -> None:
    """Read the group's adapters and hang this rank's share of them on the weights."""
    adapters = [read_adapter(name, path, identity.max_adapter_rank) for name, path in identity.adapters]
    if adapters:
        layers = stage_layers(model.config, 0, 1)
        whole = build(model.config, layers, Shard(0, 1), model.dtype)
        attach(model.weights(), adapters, whole.weights(), model.dtype, device)


def _describe(identity: Identity, rank: int, reader: CheckpointReader, device: torch.device) -> StageModel:
    config = ModelConfig.parse(reader.config, reader.generation_config)
    layers = stage_layers(config, identity.stage, identity.stages, identity.stage_layers)
    shard = Shard(rank, identity.tensor, identity.spread_experts)
    return build(config, layers, shard, dtype_of(identity.dtype, device))


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
