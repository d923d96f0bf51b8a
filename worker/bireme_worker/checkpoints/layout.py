"""Which kind of checkpoint a path holds, and its ModelConfig, for processes that never load weights. No torch."""

from pathlib import Path

from bireme_worker.checkpoints.config import ModelConfig, read_json, read_optional_json
from bireme_worker.checkpoints.errors import MissingFile, UnsupportedCheckpoint
from bireme_worker.checkpoints.gguf_config import hf_config, hf_generation_config
from bireme_worker.checkpoints.gguf_file import GGUFFile
from bireme_worker.checkpoints.manifest import MANIFEST
from bireme_worker.checkpoints.pooling import with_pooling


def load_model_config(path: Path) -> ModelConfig:
    """Read the ModelConfig of any supported checkpoint without touching its weights."""
    gguf = find_gguf(path)
    if gguf is None:
        config = with_pooling(path, read_json(path / "config.json"))
        return ModelConfig.parse(config, read_optional_json(path / "generation_config.json"))
    with GGUFFile(gguf) as file:
        return ModelConfig.parse(hf_config(file), hf_generation_config(file))


def is_safetensors(path: Path) -> bool:
    names = ("model.safetensors", "model.safetensors.index.json", MANIFEST)
    return any((path / name).exists() for name in names)


def find_gguf(path: Path) -> Path | None:
    """Return the one GGUF file that ``path`` is or holds, None when it holds safetensors.

    Raises:
        MissingFile: nothing is there. UnsupportedCheckpoint: several files, or only pickles.
    """
    if path.is_file():
        if path.suffix != ".gguf":
            raise UnsupportedCheckpoint(f"{path} is a file that is no *.gguf: name the directory of the checkpoint")
        return path
    if not path.is_dir():
        raise MissingFile(f"{path} does not exist: check the path and that its volume is mounted")
    if is_safetensors(path):
        return None
    found = sorted(path.glob("*.gguf"))
    if len(found) > 1:
        names = ", ".join(file.name for file in found)
        raise UnsupportedCheckpoint(f"{path} holds several GGUF files ({names}): name one of them")
    if found:
        return found[0]
    if list(path.glob("*.bin")):
        raise UnsupportedCheckpoint(f"{path} holds only pickled weights, which run code when read: save as safetensors")
    raise MissingFile(f"{path} holds no model.safetensors, no model.safetensors.index.json and no *.gguf")
