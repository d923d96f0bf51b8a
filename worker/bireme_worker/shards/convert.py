"""`bireme convert`: any checkpoint becomes one file per rank, in one pass for each rank.

The directory appears by one rename when all of it is on the disk, so a killed conversion leaves nothing that loads.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import torch

from bireme_worker.checkpoints.atomic import locked, partial_directory, sync_files
from bireme_worker.checkpoints.config import ModelConfig
from bireme_worker.checkpoints.convert import write_tokenizer
from bireme_worker.checkpoints.errors import TargetExists
from bireme_worker.checkpoints.manifest import Digest, Layout, Manifest, rank_file
from bireme_worker.checkpoints.open import open_checkpoint
from bireme_worker.checkpoints.progress import Progress, ignore_progress
from bireme_worker.checkpoints.quantization import Scheme, as_settings
from bireme_worker.checkpoints.reader import CheckpointReader
from bireme_worker.models.load import check, scheme_at_load
from bireme_worker.models.registry import build
from bireme_worker.models.shard import Shard
from bireme_worker.models.stages import stage_layers
from bireme_worker.shards.blocks import Unit, rank_units
from bireme_worker.shards.file import total_bytes, write_units
from bireme_worker.shards.layout import layout_of

DTYPES: Final = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def convert_sharded(
    source: Path,
    target: Path,
    *,
    tensor: int,
    pipeline: int,
    layers: Sequence[int] = (),
    quantization: str = "none",
    dtype: str = "",
    progress: Progress = ignore_progress,
) -> Path:
    """Write ``source`` for ``tensor`` × ``pipeline`` ranks at ``target`` and return ``target``.

    ``dtype``: of plain tensors, "" keeps it.

    Raises:
        TargetExists: ``target`` is there already.
        CheckpointError, ConfigurationError: the source is broken, or can't be cut or quantized in this way.
    """
    if target.exists():
        raise TargetExists(f"{target} exists: choose another target or remove it")
    target.parent.mkdir(parents=True, exist_ok=True)
    with closing(open_checkpoint(source)) as reader, locked(target.with_name(f".{target.name}.lock")):
        config = ModelConfig.parse(reader.config, reader.generation_config)
        check(config, reader)
        rounding = scheme_at_load(quantization, config) if config.quantization is None else None
        scheme_at_load(quantization, config)
        layout = layout_of(config, tensor, pipeline, layers)
        files = {
            rank_file(stage, rank): units_of(
                config, reader, layout, stage, rank, rounding=rounding, dtype=DTYPES.get(dtype)
            )
            for stage in range(pipeline)
            for rank in range(tensor)
        }
        with partial_directory(target.with_name(f".{target.name}.partial")) as partial:
            write_tokenizer(source, partial, config)
            Manifest(layout, _write_files(files, partial, progress)).write(partial)
            _write_json(partial / "config.json", _config_of(reader.config, rounding, dtype))
            if reader.generation_config:
                _write_json(partial / "generation_config.json", reader.generation_config)
            sync_files(partial)
            partial.rename(target)
    return target


def units_of(
    config: ModelConfig,
    reader: CheckpointReader,
    layout: Layout,
    stage: int,
    rank: int,
    *,
    rounding: Scheme | None,
    dtype: torch.dtype | None,
) -> list[Unit]:
    """What the file of one rank holds.

    Raises:
        CheckpointError, ConfigurationError: as ``convert_sharded``.
    """
    split = stage_layers(config, stage, layout.pipeline, layout.stage_layers)
    model = build(config, split, Shard(rank, layout.tensor), torch.float32)
    return rank_units(model, reader, rounding, dtype)


def _write_files(files: Mapping[str, list[Unit]], directory: Path, progress: Progress) -> dict[str, Digest]:
    total, done = sum(total_bytes(units) for units in files.values()), 0

    def wrote(count: int) -> None:
        nonlocal done
        done += count
        progress(done, total)

    return {name: write_units(units, directory / name, wrote) for name, units in files.items()}


def _config_of(config: Mapping[str, Any], rounding: Scheme | None, dtype: str) -> dict[str, Any]:
    changed = dict(config)
    if dtype:
        changed = {key: value for key, value in changed.items() if key != "torch_dtype"}
        changed["dtype"] = dtype
    if rounding is not None:
        changed["quantization_config"] = as_settings(rounding)
    return changed


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n")
