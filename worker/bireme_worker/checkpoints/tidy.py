"""One set of tensor names for checkpoints that were saved by different hands.

The published GPT-2 and BLOOM have no `transformer.` before their names, and some encoders have a `bert.` or `roberta.`;
old files carry attention masks and position counters as tensors, and encoders a pooler that embeddings do not use. Here
names become those that transformers writes now, and what nobody reads is left out of sight.
"""

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import torch

from bireme_worker.checkpoints.reader import CheckpointReader, TensorInfo
from bireme_worker.checkpoints.words import ENCODER_ARCHITECTURES, GPT_ARCHITECTURES

_PREFIXES: Final = {"GPT2LMHeadModel": "transformer.", "BloomForCausalLM": "transformer.", "OPTForCausalLM": "model."}
_UNREAD: Final = re.compile(
    r"(.*\.attn\.(masked_)?bias|embeddings\.(position_ids|token_type_ids)|pooler\..*|cls\..*|lm_head\..*)"
)
_HEAD: Final = "lm_head.weight"


def tidy(reader: CheckpointReader) -> CheckpointReader:
    """``reader`` with the names of today, for the families that need it."""
    named = reader.config.get("architectures") or [""]
    if named[0] not in (*GPT_ARCHITECTURES, *ENCODER_ARCHITECTURES):
        return reader
    tied = bool(reader.config.get("tie_word_embeddings", True))
    names = {_name(str(named[0]), name): name for name in reader.tensors}
    kept = {new: old for new, old in names.items() if not _UNREAD.fullmatch(new) or (new == _HEAD and not tied)}
    return _Renamed(reader, kept)


def _name(architecture: str, name: str) -> str:
    if architecture in ENCODER_ARCHITECTURES:
        return re.sub(r"^(bert|roberta)\.", "", name)
    prefix = _PREFIXES[architecture]
    return name if name.startswith((prefix, "lm_head.")) else prefix + name


class _Renamed:
    """A checkpoint under other names."""

    def __init__(self, reader: CheckpointReader, names: Mapping[str, str]) -> None:
        self._reader = reader
        self._names = names
        self.config: Mapping[str, Any] = reader.config
        self.generation_config: Mapping[str, Any] = reader.generation_config
        self.tensors: Mapping[str, TensorInfo] = MappingProxyType(
            {new: reader.tensors[old] for new, old in names.items()}
        )

    def read(self, name: str, slices: tuple[slice, ...] = ()) -> torch.Tensor:
        """As the checkpoint's own."""
        return self._reader.read(self._names.get(name, name), slices)

    def close(self) -> None:
        """As the checkpoint's own."""
        self._reader.close()
