"""Prepare a demo model: convert it once into a directory that `bireme up --mount` can use, and print that directory.

Examples:
  bireme model smollm2                     into ~/.cache/bireme
  bireme model smollm2 --cache ./models    into another directory
"""

import argparse
import os
import sys
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from bireme.names import Env, Exit

MODELS = ("smollm2",)
_NEEDED = "540 MB"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `bireme model`."""
    parser.add_argument("name", choices=MODELS, help="which model: SmolLM2-135M-Instruct")
    parser.add_argument(
        "--cache", type=Path, metavar="DIR", help=f"where to (default: {Env.CACHE_DIR} or ~/.cache/bireme)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Convert if need be; print the directory."""
    from bireme_worker.checkpoints.errors import CheckpointError
    from bireme_worker.checkpoints.packaged import ensure_smollm2

    cache = arguments.cache or Path(os.environ.get(Env.CACHE_DIR) or Path.home() / ".cache" / "bireme")
    columns = (TextColumn("converting {task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    try:
        with Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
            task = bar.add_task(arguments.name, total=None)
            path = ensure_smollm2(
                cache.expanduser().absolute(),
                progress=lambda done, total: bar.update(task, completed=done, total=total),
            )
    except CheckpointError as error:
        print(f"bireme model: {error}", file=sys.stderr)
        return Exit.BAD_CHECKPOINT
    except OSError as error:
        remedy = f"give a directory with {_NEEDED} free that you may write, by --cache or {Env.CACHE_DIR}"
        print(f"bireme model: {cache} can't be used ({error.strerror or error}): {remedy}", file=sys.stderr)
        return Exit.BAD_CONFIGURATION
    print(path)
    return 0
