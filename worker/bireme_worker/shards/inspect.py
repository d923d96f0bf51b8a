"""What a checkpoint needs: its size, each rank's memory in a layout, what is left for text, and which layouts fit.

Models are built as descriptions only, so a directory that has nothing but config.json can be asked too.
"""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch

from bireme_worker.checkpoints.config import ModelConfig, read_json, read_optional_json
from bireme_worker.checkpoints.layout import find_gguf, is_safetensors
from bireme_worker.checkpoints.manifest import Manifest, read_layout
from bireme_worker.checkpoints.open import open_checkpoint
from bireme_worker.checkpoints.quantization import Scheme
from bireme_worker.checkpoints.reader import CheckpointReader
from bireme_worker.models.errors import ConfigurationError
from bireme_worker.models.kv_cache import BLOCK_SIZE, block_bytes
from bireme_worker.models.load import check, scheme_at_load
from bireme_worker.models.registry import StageModel, build
from bireme_worker.models.shard import Shard
from bireme_worker.models.stages import stage_layers
from bireme_worker.quant.stored import Found, scheme_of, stored

TENSORS: Final = (1, 2, 3, 4, 6, 8, 16)
PIPELINES: Final = (1, 2, 3, 4, 8)
_DTYPES: Final = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_SCALE_BYTES: Final = 2


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked: a layout, the memory of a rank if known, and formats."""

    tensor: int
    pipeline: int
    memory: int | None
    dtype: str
    quantization: str
    kv_dtype: str


@dataclass(frozen=True, slots=True)
class RankNeed:
    """Bytes of one rank of a stage: its weights, and of a token's keys and values."""

    stage: int
    layers: int
    weights: int
    kv_per_token: int
    tokens: int | None
    """That fit beside the weights; None when no memory was named."""


@dataclass(frozen=True, slots=True)
class Facts:
    """The answer. ``refused``: why a layout that was asked for, or one of the usual ones, can't be had."""

    architecture: str
    parameters: int
    checkpoint_bytes: int | None
    dtype: str
    quantization: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    vocabulary: int
    context: int
    cut_for: str | None
    ranks: tuple[RankNeed, ...]
    tokens: int | None
    fitting: tuple[tuple[int, int], ...]
    refused: dict[str, str]


def inspect(
    path: Path,
    tensor: int = 1,
    pipeline: int = 1,
    *,
    memory: int | None = None,
    dtype: str = "",
    quantization: str = "none",
    kv_dtype: str = "auto",
    verify: bool = False,
) -> Facts:
    """Look at the checkpoint or bare config.json at ``path``; ``memory`` in bytes per rank, ``dtype`` "" is its own.

    Raises:
        CheckpointError, ConfigurationError: it can't be served at all.
    """
    question = Question(tensor, pipeline, memory, dtype, quantization, kv_dtype)
    if path.is_dir() and not is_safetensors(path) and not list(path.glob("*.gguf")):
        config = ModelConfig.parse(read_json(path / "config.json"), read_optional_json(path / "generation_config.json"))
        return _facts(path, config, None, question)
    with closing(open_checkpoint(path)) as reader:
        config = ModelConfig.parse(reader.config, reader.generation_config)
        check(config, reader)
        if verify and read_layout(path) is not None:
            Manifest.read(path).verify(path)
        return _facts(path, config, reader, question)


def _facts(path: Path, config: ModelConfig, reader: CheckpointReader | None, question: Question) -> Facts:
    rounding = scheme_at_load(question.quantization, config)
    kept = _DTYPES[question.dtype or config.dtype or "float32"]
    found = None if reader is None else reader.tensors
    refused = _refusals(config, rounding, found)
    reasons: dict[str, str] = {}
    fitting = [pair for pair in ((t, p) for t in TENSORS for p in PIPELINES) if pair[0] not in refused]
    fitting = [(t, p) for t, p in fitting if p <= config.num_hidden_layers]
    ranks: tuple[RankNeed, ...] = ()
    try:
        stages = [_stage(config, question.tensor, question.pipeline, stage, kept) for stage in range(question.pipeline)]
        ranks = tuple(
            _need(model, stage, weight_bytes(model, rounding, found), question) for stage, model in enumerate(stages)
        )
    except ConfigurationError as error:
        reasons[f"{question.tensor} x {question.pipeline}"] = str(error)
    reasons |= {f"--tensor {tensor}": why for tensor, why in refused.items() if tensor != question.tensor}
    cut = read_layout(path) if path.is_dir() else None
    scheme = config.quantization or rounding
    fit = [rank.tokens for rank in ranks if rank.tokens is not None]
    return Facts(
        architecture=config.architecture,
        parameters=_parameters(config),
        checkpoint_bytes=None if reader is None else _file_bytes(path),
        dtype=str(kept).removeprefix("torch."),
        quantization="none" if scheme is None else str(scheme),
        layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        vocabulary=config.vocab_size,
        context=config.max_position_embeddings,
        cut_for=None if cut is None else cut.describe(),
        ranks=ranks,
        tokens=min(fit) if fit else None,
        fitting=tuple(fitting),
        refused=reasons,
    )


def _stage(config: ModelConfig, tensor: int, pipeline: int, stage: int, dtype: torch.dtype) -> StageModel:
    return build(config, stage_layers(config, stage, pipeline), Shard(0, tensor), dtype)


def _need(model: StageModel, stage: int, weights: int, question: Question) -> RankNeed:
    head_dim = model.config.head_dim
    block = block_bytes(model.stage.count, model.heads.kv_count, head_dim, model.dtype, question.kv_dtype)
    memory = question.memory
    tokens = None if memory is None else max((memory - weights) // block, 0) * BLOCK_SIZE
    return RankNeed(stage, model.stage.count, weights, block // BLOCK_SIZE, tokens)


def weight_bytes(model: StageModel, rounding: Scheme | None, found: Found) -> int:
    """Bytes that the weights of a described model take in memory, quantized ones packed.

    Raises:
        ConfigurationError: a shard's edge is inside a quantization group.
    """
    total = 0
    for weight in model.weights():
        scheme = scheme_of(weight, model.config.quantization, found)
        scheme = scheme or (rounding if weight.quantizes else None)
        if scheme is None:
            total += weight.nbytes
            continue
        for piece in weight.pieces:
            for one in stored(piece, scheme, found if scheme is model.config.quantization else None):
                size = torch.Size(one.part).numel()
                wide = _SCALE_BYTES if one.name.endswith(("scales", "scale")) else next(iter(one.dtypes)).itemsize
                total += size * wide
    return total


def _refusals(config: ModelConfig, rounding: Scheme | None, found: Found) -> dict[int, str]:
    """Why some of the usual numbers of ranks can't be had."""
    reasons = {}
    for tensor in TENSORS:
        try:
            weight_bytes(_stage(config, tensor, 1, 0, torch.float32), rounding, found)
        except ConfigurationError as error:
            reasons[tensor] = str(error)
    return reasons


def _parameters(config: ModelConfig) -> int:
    """Of the whole model; tied embeddings count once."""
    whole = _stage(config, 1, 1, 0, torch.float32)
    shapes = {piece.source: piece.shape for weight in whole.weights() for piece in weight.pieces}
    return sum(torch.Size(shape).numel() for shape in shapes.values())


def _file_bytes(path: Path) -> int:
    gguf = find_gguf(path)
    files: Sequence[Path] = list(path.glob("*.safetensors")) if gguf is None else [gguf]
    return sum(file.stat().st_size for file in files)
