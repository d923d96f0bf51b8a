"""What the directory of a sentence-transformers model says about its vectors: `modules.json` and what it names.

It goes into the configuration under a key of ours, so that whoever parses config.json (ranks, coordinator, HTTP) knows.
A directory without `modules.json` pools by the mean, as sentence-transformers does.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from bireme_worker.checkpoints.config import read_json, read_optional_json
from bireme_worker.checkpoints.errors import CorruptFile, UnsupportedCheckpoint
from bireme_worker.checkpoints.words import ENCODER_ARCHITECTURES, POOLING

_MODES: Final = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls"}
_HARMLESS: Final = ("Transformer", "Normalize")


def with_pooling(directory: Path, config: Mapping[str, Any]) -> Mapping[str, Any]:
    """``config`` and what the directory says about pooling; only an encoder's is changed.

    Raises:
        UnsupportedCheckpoint: a module or a way of pooling that is not built.
    """
    named = config.get("architectures") or [""]
    file = directory / "modules.json"
    if named[0] not in ENCODER_ARCHITECTURES or not file.exists():
        return config
    pooling = "mean"
    for module in _modules(file):
        kind = str(module.get("type", "")).rpartition(".")[2]
        if kind == "Pooling":
            pooling = _mode(directory / str(module.get("path", "")) / "config.json")
        elif kind not in _HARMLESS:
            raise UnsupportedCheckpoint(f"{file} has a module {kind}: only Transformer, Pooling and Normalize are run")
    longest = read_optional_json(directory / "sentence_bert_config.json").get("max_seq_length")
    return {**config, POOLING: {"pooling": pooling, "longest": longest}}


def _modules(file: Path) -> list[Mapping[str, Any]]:
    try:
        modules: list[Mapping[str, Any]] = msgspec.json.decode(file.read_bytes(), type=list[dict[str, Any]])
    except msgspec.MsgspecError as error:
        raise CorruptFile(f"{file} is no list of modules ({error}): copy the checkpoint again") from error
    return modules


def _mode(file: Path) -> str:
    settings = read_json(file)
    chosen = [key for key, value in settings.items() if key.startswith("pooling_mode_") and value is True]
    if settings.get("pooling_mode") in _MODES.values():  # newer files name it
        return str(settings["pooling_mode"])
    if len(chosen) != 1 or chosen[0] not in _MODES:
        raise UnsupportedCheckpoint(f"{file} pools by {', '.join(chosen) or 'nothing'}: only mean and cls are built")
    return _MODES[chosen[0]]
