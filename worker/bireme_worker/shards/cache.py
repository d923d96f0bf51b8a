"""A node's own copy of what its ranks read: written once, mapped at the next start.

An entry is a rank's file beside a note of its size and checksum, which is written last: what has no note, or does not
fit it, is not there. The name of an entry is a hash of everything that decides its contents, so nothing is ever stale.
"""

import hashlib
import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from bireme_worker.checkpoints.atomic import locked, sync_file
from bireme_worker.checkpoints.errors import CheckpointError
from bireme_worker.checkpoints.manifest import Digest
from bireme_worker.checkpoints.quantization import Scheme, as_settings
from bireme_worker.checkpoints.reader import CheckpointReader
from bireme_worker.checkpoints.sharded_reader import PartsReader
from bireme_worker.models.registry import StageModel
from bireme_worker.shards.blocks import rank_units
from bireme_worker.shards.file import total_bytes, write_units

log = logging.getLogger(__name__)

VERSION: Final = 1
_READ: Final = (".safetensors", ".gguf", ".json")


class ShardCache:
    """Entries in ``directory``, at most ``bound`` bytes of them (0: any)."""

    def __init__(self, directory: Path, bound: int) -> None:
        self._directory = directory
        self._bound = bound

    def open(
        self, key: str, model: StageModel, reader: CheckpointReader, rounding: Scheme | None
    ) -> CheckpointReader | None:
        """A reader of this rank's own file, which is written if need be; None when it can't be had."""
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            with locked(self._directory / f".{key}.lock"):
                file = self._directory / f"{key}.safetensors"
                if not self._is_whole(file) and not self._write(file, model, reader, rounding):
                    return None
                os.utime(file)
                return PartsReader(_config(reader.config, rounding), reader.generation_config, [file])
        except (OSError, CheckpointError) as error:
            _warn(f"{self._directory} is not used: {error}")
            return None

    def drop(self, key: str) -> None:
        """Forget an entry that could not be read."""
        for path in self._directory.glob(f"{key}.*"):
            path.unlink(missing_ok=True)

    def _is_whole(self, file: Path) -> bool:
        note = file.with_suffix(".note")
        if not note.is_file():
            return False
        try:
            expected = Digest(**json.loads(note.read_text()))
            with file.open("rb") as opened:
                found = Digest(file.stat().st_size, hashlib.file_digest(opened, "sha256").hexdigest())
        except (OSError, ValueError, TypeError) as error:
            _warn(f"{file} is broken and is written again: {error}")
            return False
        if found != expected:
            _warn(f"{file} is broken and is written again: it is {found}, its note says {expected}")
        return found == expected

    def _write(self, file: Path, model: StageModel, reader: CheckpointReader, rounding: Scheme | None) -> bool:
        units = rank_units(model, reader, rounding, None)
        if not self._make_room(total_bytes(units)):
            _warn(f"{self._directory} has no room for {total_bytes(units)} bytes within its bound of {self._bound}")
            return False
        file.with_suffix(".note").unlink(missing_ok=True)
        partial = file.with_suffix(".partial")
        try:
            digest = write_units(units, partial, lambda _: None)
            sync_file(partial)
            partial.rename(file)
        finally:
            partial.unlink(missing_ok=True)
        note = file.with_suffix(".note.partial")
        note.write_text(json.dumps({"bytes": digest.bytes, "sha256": digest.sha256}))
        note.rename(file.with_suffix(".note"))
        return True

    def _make_room(self, needed: int) -> bool:
        """Remove what was used longest ago; a process that has it mapped keeps it until it lets go."""
        if self._bound == 0:
            return True
        entries = sorted(self._directory.glob("*.safetensors"), key=lambda path: path.stat().st_mtime_ns)
        total = sum(path.stat().st_size for path in entries)
        while entries and total + needed > self._bound:
            oldest = entries.pop(0)
            total -= oldest.stat().st_size
            self.drop(oldest.stem)
        return total + needed <= self._bound


def cache_key(source: Path, place: Mapping[str, Any], rounding: Scheme | None) -> str:
    """The name of what a rank at ``place`` reads of the checkpoint at ``source``."""
    files = [source] if source.is_file() else sorted(path for path in source.iterdir() if path.suffix in _READ)
    held = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    settings = None if rounding is None else as_settings(rounding)
    text = json.dumps([VERSION, str(source.resolve()), held, dict(place), settings], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def _config(config: Mapping[str, Any], rounding: Scheme | None) -> Mapping[str, Any]:
    return config if rounding is None else {**config, "quantization_config": as_settings(rounding)}


def _warn(text: str) -> None:
    log.warning("shard cache: %s", text)
