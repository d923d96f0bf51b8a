"""The files of a Hugging Face directory and their headers, checked against the index and against their sizes. No torch.

So a broken checkpoint is refused before any process is started, and again by every rank before it reads a byte.
"""

from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from bireme_worker.checkpoints.config import read_json
from bireme_worker.checkpoints.errors import CorruptFile, DuplicateTensor, MissingFile, MissingTensor, UnexpectedTensor
from bireme_worker.checkpoints.layout import find_gguf
from bireme_worker.checkpoints.manifest import MANIFEST, Manifest
from bireme_worker.checkpoints.mapped_file import MappedFile
from bireme_worker.checkpoints.safetensors_header import Entry, read_header

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"

Headers = dict[str, dict[str, Entry]]


def open_headers(directory: Path) -> tuple[dict[str, MappedFile], Headers]:
    """Open all files of ``directory`` and return them with their headers.

    Raises:
        CheckpointError: a file is missing, cut or corrupt, or the index and the files disagree.
    """
    index = None if (directory / SINGLE).exists() else _weight_map(directory / INDEX)
    names = [SINGLE] if index is None else sorted(set(index.values()))
    _check_present(directory, names)
    files: dict[str, MappedFile] = {}
    with ExitStack() as on_failure:
        for name in names:
            files[name] = MappedFile(directory / name)
            on_failure.callback(files[name].close)
        headers = {name: read_header(file) for name, file in files.items()}
        _check_unique(directory, headers)
        if index is not None:
            _check_index(directory / INDEX, index, headers)
        on_failure.pop_all()
    return files, headers


def check_files(path: Path) -> None:
    """Check headers and sizes of the checkpoint at ``path``; a GGUF file is checked whenever its metadata is read.

    Raises:
        CheckpointError: as ``open_headers``.
    """
    if (path / MANIFEST).is_file():
        Manifest.read(path)
    elif find_gguf(path) is None:
        for file in open_headers(path)[0].values():
            file.close()


def _weight_map(path: Path) -> dict[str, str]:
    weight_map = read_json(path).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CorruptFile(f"{path} has no weight_map: copy it again")
    for tensor, file in weight_map.items():
        if not isinstance(file, str) or Path(file).name != file:
            raise CorruptFile(f"{path} places {tensor} in {file!r}, which is no file name in its directory")
    return weight_map


def _check_present(directory: Path, names: list[str]) -> None:
    missing = [name for name in names if not (directory / name).is_file()]
    if missing:
        raise MissingFile(f"{directory} lacks {', '.join(missing)}: copy the checkpoint again")


def _check_unique(directory: Path, headers: Mapping[str, Mapping[str, Entry]]) -> None:
    counts = Counter(name for header in headers.values() for name in header)
    twice = sorted(name for name, count in counts.items() if count > 1)
    if twice:
        files = sorted(file for file, header in headers.items() if twice[0] in header)
        raise DuplicateTensor(f"{directory}: {', '.join(twice)} is in {' and in '.join(files)}: remove the stale file")


def _check_index(path: Path, index: Mapping[str, str], headers: Mapping[str, Mapping[str, Entry]]) -> None:
    absent = sorted(f"{name} in {file}" for name, file in index.items() if name not in headers[file])
    if absent:
        raise MissingTensor(f"{path} places {', '.join(absent)}, but it is not there: copy that file again")
    unknown = sorted(name for header in headers.values() for name in header if name not in index)
    if unknown:
        raise UnexpectedTensor(
            f"{path} does not name {', '.join(unknown)}, but its files have it: copy all files again"
        )
