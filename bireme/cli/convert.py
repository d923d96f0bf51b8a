"""Cut a checkpoint into one file per rank, quantizing it on the way if asked to, in little memory.

SRC is anything that can be served: a directory of safetensors, a GGUF file, or files cut for another layout. A group of
the same layout then reads its own files alone. DST must not exist; it appears when all of it is written.

Examples:
  bireme convert /models/llama-70b /models/llama-70b-tp8 --tensor 8
  bireme convert model.gguf /models/small --tensor 2 --pipeline 2 --quantize int4
"""

import argparse
import sys
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from bireme.cli.numbers import positive
from bireme.names import Exit

FORMATS = ("none", "int8", "int4", "fp8")
DTYPES = ("float32", "bfloat16", "float16")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `bireme convert`."""
    parser.add_argument("source", type=Path, metavar="SRC", help="checkpoint to read")
    parser.add_argument("target", type=Path, metavar="DST", help="directory to make")
    parser.add_argument("--tensor", type=positive, default=1, metavar="T", help="ranks per stage (default 1)")
    parser.add_argument("--pipeline", type=positive, default=1, metavar="P", help="stages (default 1)")
    parser.add_argument(
        "--stage-layers", default="", metavar="N,N,…", help="layers of each stage (default: the weighted split)"
    )
    parser.add_argument("--quantize", choices=FORMATS, default="none", help="what linear layers become (default none)")
    parser.add_argument("--dtype", choices=DTYPES, help="of what stays plain (default: as it is; a GGUF's is float32)")


def run(arguments: argparse.Namespace) -> int:
    """Convert with a progress bar; print the directory."""
    from bireme_worker.checkpoints.errors import CheckpointError
    from bireme_worker.models.errors import ConfigurationError
    from bireme_worker.shards.convert import convert_sharded

    columns = (TextColumn("converting"), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    try:
        layers = tuple(int(part) for part in arguments.stage_layers.split(",") if part)
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task("", total=None)
            path = convert_sharded(
                arguments.source.expanduser().absolute(),
                arguments.target.expanduser().absolute(),
                tensor=arguments.tensor,
                pipeline=arguments.pipeline,
                layers=layers,
                quantization=arguments.quantize,
                dtype=arguments.dtype or "",
                progress=lambda done, total: bar.update(task, completed=done, total=total),
            )
    except (CheckpointError, OSError) as error:
        print(f"bireme convert: {error}", file=sys.stderr)
        return Exit.BAD_CHECKPOINT
    except (ConfigurationError, ValueError) as error:
        print(f"bireme convert: {error}", file=sys.stderr)
        return Exit.BAD_CONFIGURATION
    print(path)
    return 0
