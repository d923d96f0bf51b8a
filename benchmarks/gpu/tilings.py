"""Other tilings of the products with quantized matrices beside the chosen ones.

Prints for each format, matrix and number of rows the fastest ones and what is chosen today.

    python benchmarks/gpu/tilings.py [--formats int8,fp8,int4] [--models 70b/2] [--rows 1,16,64,128] [--seconds 200]
"""

import argparse
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import torch
import triton

from benchmarks.gpu.kernel_tables import graph_us
from benchmarks.gpu.quantized import SHAPES, rotating
from bireme_worker.kernels import fp8, integers
from bireme_worker.quant.gpu import GpuFp8Matrix, TiledMatrix


def tune(models: Sequence[str], kinds: Sequence[str], many: Sequence[int], seconds: float) -> None:
    """Other tilings, the fastest first and what is chosen today; as far as the time goes."""
    end = time.monotonic() + seconds
    for rows, kind, model in product(many, kinds, models):
        for name, (outputs, inputs) in SHAPES[model].items():
            if time.monotonic() > end:
                print("stopped: out of time", flush=True)
                return
            matrices, nbytes, count = rotating(kind, outputs, inputs)
            x = torch.randn((rows, inputs), device="cuda", dtype=torch.bfloat16)
            ways = dict(_ways(x, matrices))
            figures = dict(_timed(ways, count))
            best = sorted(figures, key=lambda way: figures[way])[:4]
            shown = "; ".join(
                f"{way} {figures[way]:.1f} us {nbytes / figures[way] * 1e-6:.2f} TB/s"
                for way in dict.fromkeys((*best, *({"now", "tile"} & figures.keys())))
            )
            print(f"{kind} {model} {name} {outputs} x {inputs}, {rows} rows: {shown}", flush=True)
            del matrices


def _timed(ways: Mapping[str, Callable[[int], object]], count: int) -> Iterator[tuple[str, float]]:
    """Microseconds of each way that this card can run."""
    for way, call in ways.items():
        try:
            yield way, graph_us(call, count)
        except (triton.OutOfResources, RuntimeError) as error:
            print(f"{way}: {error}"[:150], flush=True)


def _ways(x: torch.Tensor, matrices: Sequence[Any]) -> Iterator[tuple[str, Callable[[int], object]]]:
    is_fp8 = isinstance(matrices[0], GpuFp8Matrix)
    if is_fp8:
        rounded, scale = fp8.round_rows(x, None)
        line = partial(_fp8_line, rounded, scale, matrices)
        tiled = partial(_fp8_tile, rounded, scale, matrices)
    else:
        line, tiled = partial(_line, x, matrices), partial(_tile, x, matrices)
    yield "now", tiled(None) if len(x) > 1 else line()
    if len(x) == 1:
        for count in (1, 2):
            for block in (4096, 8192, 16_384):
                for warps in (4, 8) if count * block > 4096 else (2, 4):
                    how = {"outputs": count, "block": block, "warps": warps}
                    yield str(how), line(**how)
        yield "tile", tiled(None)
        return
    outputs, inputs = matrices[0].tensors()[0].shape
    nbytes = (fp8.STEP, fp8.STEP) if is_fp8 else (64, 128)
    steps, room = inputs // nbytes[0], integers.room_of(x.device)
    now = integers.tiling_of(len(x), outputs, steps, nbytes, room, deep=is_fp8)
    for change in (
        {"stages": now.stages + 2},
        {"stages": now.stages - 1},
        {"outputs": 64, "warps": 4},
        {"outputs": 128, "warps": 4},
        {"outputs": 128, "warps": 8},
        {"splits": max(now.splits // 2, 1)},
        {"splits": now.splits * 2},
        {"outputs": 128, "warps": 8, "splits": max(now.splits // 2, 1), "stages": 4},
        {"rows": max(now.rows // 2, 16)},
    ):
        yield str(change), tiled(replace(now, **change))


def _line(x: torch.Tensor, matrices: Sequence[TiledMatrix], **how: int) -> Callable[[int], object]:
    packed = [integers.Packed(m.bits, m.codes, m.scales, m.zeros, m.span) for m in matrices]
    return lambda number: integers.line(x, packed[number], **how)


def _tile(x: torch.Tensor, matrices: Sequence[TiledMatrix], tiling: integers.Tiling | None) -> Callable[[int], object]:
    packed = [integers.Packed(m.bits, m.codes, m.scales, m.zeros, m.span) for m in matrices]
    return lambda number: integers.tile(x, packed[number], tiling)


def _fp8_line(
    x: torch.Tensor, scale: torch.Tensor, matrices: Sequence[GpuFp8Matrix], **how: int
) -> Callable[[int], object]:
    return lambda n: fp8.line(x, scale, matrices[n].values, matrices[n].scales, torch.bfloat16, **how)


def _fp8_tile(
    x: torch.Tensor, scale: torch.Tensor, matrices: Sequence[GpuFp8Matrix], tiling: integers.Tiling | None
) -> Callable[[int], object]:
    return lambda n: fp8.tile(x, scale, matrices[n].values, matrices[n].scales, torch.bfloat16, tiling)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--formats", default="int8,fp8,int4")
    parser.add_argument("--models", default="70b/2", help=f"of {', '.join(SHAPES)}")
    parser.add_argument("--rows", default="1,16,64,128")
    parser.add_argument("--seconds", type=float, default=200.0)
    options = parser.parse_args()
    many = [int(rows) for rows in options.rows.split(",")]
    tune(options.models.split(","), options.formats.split(","), many, options.seconds)


if __name__ == "__main__":
    main()
