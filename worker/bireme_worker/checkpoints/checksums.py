"""The SHA-256 of the files of a checkpoint that brings them along, in `SHA256SUMS`, as `sha256sum *` writes it.

Headers and lengths tell a truncated file from a whole one; only a checksum tells flipped bytes from the right ones.
"""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Final

from bireme_worker.checkpoints.errors import CorruptFile, MissingFile

SUMS: Final = "SHA256SUMS"
_READ_BYTES: Final = 4 << 20
_WEIGHTS: Final = (".safetensors", ".gguf")


def verify(source: Path, heed: Callable[[], None]) -> None:
    """Read every file that `SHA256SUMS` beside the weights lists; without one there is nothing to check.

    ``heed`` is called every few megabytes and may raise.

    Raises:
        CorruptFile: a file is not what its line says, or weights have no line.
        MissingFile: a listed file is not there.
    """
    directory = source if source.is_dir() else source.parent
    if not (directory / SUMS).is_file():
        return
    wanted = _read(directory / SUMS)
    weights = [source.name] if source.is_file() else [p.name for p in directory.iterdir() if p.suffix in _WEIGHTS]
    if bare := sorted(name for name in weights if name not in wanted):
        raise CorruptFile(f"{directory / SUMS} has no line for {', '.join(bare)}: list every file of weights, or none")
    for name in sorted(wanted) if source.is_dir() else weights:
        found = _digest(directory / name, heed)
        if found != wanted[name]:
            raise CorruptFile(f"{directory / name} has SHA-256 {found}, {SUMS} says {wanted[name]}: copy it again")


def _read(sums: Path) -> dict[str, str]:
    lines = [line.split(maxsplit=1) for line in sums.read_text(errors="replace").splitlines() if line.strip()]
    if any(len(line) != 2 for line in lines):
        raise CorruptFile(f"{sums}: each line must be a digest and a file name, as sha256sum writes them")
    return {name.lstrip("*").removeprefix("./"): digest.lower() for digest, name in lines}


def _digest(path: Path, heed: Callable[[], None]) -> str:
    digest = hashlib.sha256()
    try:
        with path.open("rb", buffering=0) as file:
            while chunk := file.read(_READ_BYTES):
                heed()
                digest.update(chunk)
    except FileNotFoundError as error:
        raise MissingFile(f"{path} is listed in {SUMS} and is not there: copy it") from error
    return digest.hexdigest()
