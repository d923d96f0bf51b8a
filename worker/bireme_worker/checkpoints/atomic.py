"""Things that appear on the disk whole or not at all: written beside their place, synced, and renamed into it."""

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock that the kernel frees when the process dies, however it dies."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def partial_directory(path: Path) -> Iterator[Path]:
    """Make an empty directory, and remove it when the work fails: a full disk must not stay full."""
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir()
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def sync_files(directory: Path) -> None:
    """See all files to the disk before the directory gets its name, or a power cut could leave empty ones under it."""
    for path in directory.iterdir():
        sync_file(path)


def sync_file(path: Path) -> None:
    """See one file to the disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
