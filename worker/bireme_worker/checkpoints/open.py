"""Open a checkpoint of any supported kind."""

from pathlib import Path

from bireme_worker.checkpoints.gguf_reader import GGUFCheckpointReader
from bireme_worker.checkpoints.layout import find_gguf
from bireme_worker.checkpoints.manifest import MANIFEST
from bireme_worker.checkpoints.reader import CheckpointReader
from bireme_worker.checkpoints.safetensors_reader import SafetensorsReader
from bireme_worker.checkpoints.sharded_reader import ShardedReader
from bireme_worker.checkpoints.tidy import tidy


def open_checkpoint(path: Path) -> CheckpointReader:
    """Open a directory of safetensors (one file, an index, or a file per rank) or of one GGUF file, or a GGUF file.

    All files are checked against their headers before this returns.

    Raises:
        CheckpointError: with the name of the file or tensor and what to do.
    """
    if (path / MANIFEST).is_file():
        return tidy(ShardedReader(path))
    gguf = find_gguf(path)
    return tidy(SafetensorsReader(path)) if gguf is None else GGUFCheckpointReader(gguf)
