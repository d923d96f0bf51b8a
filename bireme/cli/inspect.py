"""Show what a checkpoint needs: parameters, memory per rank in a layout, tokens that fit, and which layouts divide.

PATH is a checkpoint, or a directory that has only its config.json. Reads headers, no weights.

Examples:
  bireme inspect /models/llama-70b --tensor 4 --pipeline 2 --memory 80GiB
  bireme inspect /models/llama-70b --tensor 4 --quantize int4 --json
"""

import argparse
import dataclasses
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from bireme.cli.convert import DTYPES, FORMATS
from bireme.cli.numbers import memory, positive
from bireme.names import Exit

if TYPE_CHECKING:
    from bireme_worker.shards.inspect import Facts


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `bireme inspect`."""
    parser.add_argument("path", type=Path, metavar="PATH", help="checkpoint, or directory with a config.json")
    parser.add_argument("--tensor", type=positive, default=1, metavar="T", help="ranks per stage (default 1)")
    parser.add_argument("--pipeline", type=positive, default=1, metavar="P", help="stages (default 1)")
    parser.add_argument("--memory", type=memory, metavar="BYTES", help="memory of a rank, for example 80GiB")
    parser.add_argument("--dtype", choices=DTYPES, help="of weights and cache (default: the checkpoint's own)")
    parser.add_argument("--quantize", choices=FORMATS, default="none", help="as model.quantization (default none)")
    parser.add_argument("--kv-dtype", choices=("auto", "fp8", "int8"), default="auto", help="as engine.kvCache.dtype")
    parser.add_argument("--verify", action="store_true", help="read all files of `bireme convert` against checksums")
    parser.add_argument("--json", action="store_true", help="print JSON for other programs")


def run(arguments: argparse.Namespace) -> int:
    """Print the facts; exit code 64 when the layout that was asked for is refused."""
    from bireme_worker.checkpoints.errors import CheckpointError
    from bireme_worker.models.errors import ConfigurationError
    from bireme_worker.shards.inspect import inspect

    try:
        facts = inspect(
            arguments.path.expanduser().absolute(),
            arguments.tensor,
            arguments.pipeline,
            memory=arguments.memory,
            dtype=arguments.dtype or "",
            quantization=arguments.quantize,
            kv_dtype=arguments.kv_dtype,
            verify=arguments.verify,
        )
    except CheckpointError as error:
        print(f"bireme inspect: {error}", file=sys.stderr)
        return Exit.BAD_CHECKPOINT
    except ConfigurationError as error:
        print(f"bireme inspect: {error}", file=sys.stderr)
        return Exit.BAD_CONFIGURATION
    print(json.dumps(dataclasses.asdict(facts), indent=2) if arguments.json else "\n".join(_lines(facts, arguments)))
    return 0 if facts.ranks else Exit.BAD_CONFIGURATION


def _lines(facts: "Facts", arguments: argparse.Namespace) -> list[str]:
    size = "" if facts.checkpoint_bytes is None else f", {_size(facts.checkpoint_bytes)} of files"
    lines = [
        f"{facts.architecture}: {facts.parameters:,} parameters{size}",
        f"{facts.layers} layers of {facts.hidden}, {facts.heads} heads ({facts.kv_heads} key-value)",
        f"vocabulary {facts.vocabulary:,}, context {facts.context:,}",
        f"weights {facts.dtype}, quantization {facts.quantization}",
    ]
    if facts.cut_for is not None:
        lines.append(f"cut for {facts.cut_for}")
    lines += ["", f"tensor {arguments.tensor} x pipeline {arguments.pipeline}, each rank:"]
    for rank in facts.ranks:
        fits = "" if rank.tokens is None else f", {rank.tokens:,} tokens fit"
        lines.append(
            f"  stage {rank.stage}: {rank.layers} layers, weights {_size(rank.weights)}, "
            f"{_size(rank.kv_per_token)} per token{fits}"
        )
    if facts.tokens is not None:
        lines.append(f"  {facts.tokens:,} tokens of all requests together fit in {_size(arguments.memory)} per rank")
    tensors = sorted({tensor for tensor, _ in facts.fitting})
    pipelines = sorted({pipeline for _, pipeline in facts.fitting})
    lines += ["", f"divides by tensor {_listed(tensors)} and pipeline {_listed(pipelines)}"]
    return lines + [f"refused {layout}: {why}" for layout, why in facts.refused.items()]


def _listed(numbers: list[int]) -> str:
    return ", ".join(str(number) for number in numbers) or "none of the usual numbers"


def _size(count: int) -> str:
    value, unit = float(count), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
