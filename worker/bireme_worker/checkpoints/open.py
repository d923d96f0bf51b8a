"""Open a checkpoint of any supported kind."""

from pathlib import Path

from bireme_worker.checkpoints.gguf_reader import GGUFCheckpointReader
from bireme_worker.checkpoints.layout import find_gguf
from bireme_worker.checkpoints.reader import CheckpointReader
from bireme_worker.checkpoints.safetensors_reader import SafetensorsReader


def open_checkpoint(path: Path) -> CheckpointReader:
    """Open a directory of safetensors (single file or index), a directory with one GGUF file, or a GGUF file.

    All files are checked against their headers before this returns.

    Raises:
        CheckpointError: with the name of the file or tensor and what to do.
    """
    gguf = find_gguf(path)
    return SafetensorsReader(path) if gguf is None else GGUFCheckpointReader(gguf)
