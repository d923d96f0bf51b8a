"""`bireme.json` beside pre-sharded weights: for which layout they are cut, and what each file must be. No torch."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from bireme_worker.checkpoints.config import read_json
from bireme_worker.checkpoints.errors import CorruptFile, MissingFile, TruncatedFile

MANIFEST: Final = "bireme.json"
VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Layout:
    """Ranks per stage, and layers per stage."""

    tensor: int
    stage_layers: tuple[int, ...]

    @property
    def pipeline(self) -> int:
        """Number of stages."""
        return len(self.stage_layers)

    def describe(self) -> str:
        """A few words for messages."""
        layers = ", ".join(str(count) for count in self.stage_layers)
        return f"--tensor {self.tensor} --pipeline {self.pipeline} (layers {layers})"


@dataclass(frozen=True, slots=True)
class Digest:
    """What one file must be."""

    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """All of `bireme.json`."""

    layout: Layout
    files: Mapping[str, Digest]

    @classmethod
    def read(cls, directory: Path) -> Self:
        """Read and check it, and the size of every file that it names.

        Raises:
            CheckpointError: it can't be read, or a file is missing or of another size.
        """
        path = directory / MANIFEST
        raw = read_json(path)
        try:
            if raw["version"] != VERSION:
                raise CorruptFile(f"{path} is of version {raw['version']}, this is Bireme for version {VERSION}")
            layout = Layout(int(raw["tensor"]), tuple(int(count) for count in raw["stage_layers"]))
            files = {str(name): Digest(int(one["bytes"]), str(one["sha256"])) for name, one in raw["files"].items()}
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CorruptFile(f"{path} is no manifest of `bireme convert` ({error!r}): convert again") from error
        for name, digest in files.items():
            _check_size(directory / name, digest)
        return cls(layout, files)

    def write(self, directory: Path) -> None:
        """Write it."""
        raw: dict[str, Any] = {
            "version": VERSION,
            "tensor": self.layout.tensor,
            "pipeline": self.layout.pipeline,
            "stage_layers": list(self.layout.stage_layers),
            "files": {name: {"bytes": one.bytes, "sha256": one.sha256} for name, one in self.files.items()},
        }
        (directory / MANIFEST).write_text(json.dumps(raw, indent=2) + "\n")

    def verify(self, directory: Path) -> None:
        """Read every byte of every file.

        Raises:
            CorruptFile: a checksum differs.
        """
        for name, digest in self.files.items():
            with (directory / name).open("rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
            if found != digest.sha256:
                raise CorruptFile(f"{directory / name} has the checksum {found}, {MANIFEST} says {digest.sha256}")


def read_layout(directory: Path) -> Layout | None:
    """The layout of a pre-sharded directory, None when it is none."""
    return Manifest.read(directory).layout if (directory / MANIFEST).is_file() else None


def rank_file(stage: int, rank: int) -> str:
    """The file of one rank."""
    return f"stage-{stage}-rank-{rank}.safetensors"


def _check_size(path: Path, digest: Digest) -> None:
    if not path.is_file():
        raise MissingFile(f"{path} is missing: copy the checkpoint again")
    size = path.stat().st_size
    if size != digest.bytes:
        raise TruncatedFile(f"{path} is {size} bytes, {MANIFEST} says {digest.bytes}: copy it again")
