"""Convert any supported checkpoint into a Hugging Face directory: config.json, model.safetensors, tokenizer.json and
the rest.

The directory appears by one rename when all of it is on the disk: a killed conversion leaves only a hidden `.partial`
beside it, which the next one removes. A lock lets one conversion per target run at a time.
"""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from bireme_worker.checkpoints.accounting import TIED_COPY
from bireme_worker.checkpoints.atomic import locked, partial_directory, sync_files
from bireme_worker.checkpoints.config import ModelConfig
from bireme_worker.checkpoints.errors import TargetExists, UnsupportedCheckpoint
from bireme_worker.checkpoints.gguf_file import GGUFFile
from bireme_worker.checkpoints.layout import find_gguf
from bireme_worker.checkpoints.open import open_checkpoint
from bireme_worker.checkpoints.progress import Progress, ignore_progress
from bireme_worker.checkpoints.safetensors_writer import NAMES, write_safetensors
from bireme_worker.text.gguf_tokenizer import gguf_tokenizer

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "tokenizer.model",
)


def convert(
    source: Path, target: Path, *, progress: Progress = ignore_progress, dtype: torch.dtype = torch.float32
) -> Path:
    """Write ``source`` as a Hugging Face directory at ``target`` and return ``target``.

    Raises:
        TargetExists: ``target`` is there already.
        CheckpointError: the source is broken or of an unsupported kind.
    """
    if target.exists():
        raise TargetExists(f"{target} exists: choose another target or remove it")
    return convert_once(source, target, progress=progress, dtype=dtype)


def convert_once(
    source: Path, target: Path, *, progress: Progress = ignore_progress, dtype: torch.dtype = torch.float32
) -> Path:
    """Do as `convert`, but return a ``target`` that is there already, or that another process makes meanwhile."""
    if dtype not in NAMES:
        raise UnsupportedCheckpoint(f"cannot write {dtype}, only {', '.join(str(name) for name in NAMES)}")
    target.parent.mkdir(parents=True, exist_ok=True)
    with locked(target.with_name(f".{target.name}.lock")):
        if not target.exists():
            with partial_directory(target.with_name(f".{target.name}.partial")) as partial:
                _write(source, partial, dtype, progress)
                sync_files(partial)
                partial.rename(target)
    return target


def _write(source: Path, directory: Path, dtype: torch.dtype, progress: Progress) -> None:
    reader = open_checkpoint(source)
    try:
        config = ModelConfig.parse(reader.config, reader.generation_config)
        _write_json(directory / "config.json", _config_of(reader.config, dtype))
        if reader.generation_config:
            _write_json(directory / "generation_config.json", reader.generation_config)
        write_tokenizer(source, directory, config)
        kept = [info for name, info in reader.tensors.items() if not (config.tie_word_embeddings and name == TIED_COPY)]
        write_safetensors(reader, kept, directory / "model.safetensors", dtype, progress)
    finally:
        reader.close()


def _config_of(config: Mapping[str, Any], dtype: torch.dtype) -> dict[str, Any]:
    others = {key: value for key, value in config.items() if key != "torch_dtype"}
    return {**others, "dtype": str(dtype).removeprefix("torch.")}


def write_tokenizer(source: Path, directory: Path, config: ModelConfig) -> None:
    """Copy the tokenizer's files, or make them of a GGUF file's metadata."""
    gguf = find_gguf(source)
    if gguf is None:
        for name in TOKENIZER_FILES:
            if (source / name).exists():
                shutil.copyfile(source / name, directory / name)
        return
    with GGUFFile(gguf) as file:
        tokenizer, settings = gguf_tokenizer(file)
    tokenizer.save(str(directory / "tokenizer.json"), pretty=False)
    _write_json(
        directory / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": config.max_position_embeddings,
            "clean_up_tokenization_spaces": False,
            **settings,
        },
    )


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n")
