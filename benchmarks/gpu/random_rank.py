"""A rank whose checkpoint is a config.json alone: its weights are drawn on its device, in place of reading files.

Everything else is the worker's own rank process.
"""

import json
from pathlib import Path

from bireme.process import die_with_parent

if __name__ == "__main__":
    die_with_parent()  # before torch, as the rank itself

from benchmarks.gpu.weights import RandomReader
from bireme_worker.rank import loading
from bireme_worker.rank import main as rank


def _open(path: Path) -> RandomReader:
    return RandomReader(json.loads((path / "config.json").read_text()))


def main() -> None:
    """Draw where the rank would read."""
    loading.open_checkpoint = _open  # type: ignore[attr-defined]  # all that the loader needs of a reader
    rank.main()


if __name__ == "__main__":
    main()
