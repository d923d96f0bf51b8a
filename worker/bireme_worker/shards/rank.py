"""How a rank reads its weights: from a whole checkpoint, from files cut for its layout, or from the node's cache."""

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import torch

from bireme_worker.checkpoints.errors import CheckpointError
from bireme_worker.checkpoints.manifest import read_layout
from bireme_worker.checkpoints.reader import CheckpointReader
from bireme_worker.identity import Identity
from bireme_worker.models.load import check, load, read_weights, scheme_at_load
from bireme_worker.models.registry import StageModel
from bireme_worker.shards.cache import ShardCache, cache_key
from bireme_worker.shards.layout import check_layout


@dataclass(frozen=True, slots=True)
class Where:
    """Which rank of its stage, on which device."""

    rank: int
    device: torch.device


def load_rank(identity: Identity, source: Path, model: StageModel, reader: CheckpointReader, where: Where) -> None:
    """Fill ``model`` from the checkpoint ``source``, which ``reader`` has open.

    Raises:
        CheckpointError, ConfigurationError: as ``load``; a cache that fails is only warned of.
    """
    check_layout(source, model.config, identity.tensor, identity.stages, identity.stage_layers)
    if identity.shard_cache is None or read_layout(source) is not None:
        load(model, reader, where.device, quantization=identity.quantization)
        return
    rounding = scheme_at_load(identity.quantization, model.config)
    check(model.config, reader)
    layers = (model.stage.first, model.stage.last, identity.stage, identity.stages)
    place = {"layers": layers, "rank": where.rank, "tensor": identity.tensor, "spread": identity.spread_experts}
    key = cache_key(source, place, rounding)
    cache = ShardCache(identity.shard_cache, identity.shard_cache_bytes)
    own = cache.open(key, model, reader, rounding)
    if own is None or not _read_own(own, model, where.device):
        cache.drop(key)
        load(model, reader, where.device, quantization=identity.quantization)


def _read_own(own: CheckpointReader, model: StageModel, device: torch.device) -> bool:
    with closing(own):
        try:
            read_weights(model, own, device, packed=True, rounded=None)
        except CheckpointError:
            return False
        return True
