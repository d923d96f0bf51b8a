"""How prefill attention by pages should be cut: every `Tile` that compiles, as a share of the matrix rate of this card.

    python -m benchmarks.gpu.tiles

What comes out best is written into `bireme_worker.kernels.attention.PREFILL` by hand. The last line is JSON.
"""

import itertools
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import triton

from benchmarks.gpu.job import Bench
from benchmarks.gpu.jobs_kernels import PREFILLS, Ground, _prefill, ground
from bireme_worker.kernels import attention
from bireme_worker.kernels.attention import Tile

TILES = [
    Tile(rows, span, warps, stages)
    for rows, span, warps, stages in itertools.product((64, 128), (32, 64, 128), (4, 8), (2, 3, 4))
    if rows * span <= 128 * 128 and (warps == 4 or rows == 128)
]


@contextmanager
def cut(tile: Tile) -> Iterator[None]:
    """Inside, prompts are attended to by pages in this tile."""
    before = attention.PREFILL
    attention.PREFILL = tile
    try:
        yield
    finally:
        attention.PREFILL = before


def _shares(on: Ground, tile: Tile) -> list[float]:
    with cut(tile):
        return [round(_prefill(on, rows, tokens, size=0), 1) for rows, tokens in PREFILLS]


def main() -> None:
    found = {}
    with ground(Bench("kernels", "llama8b", "cuda", Path(), (), 0.0, Path())) as on:
        for tile in TILES:
            try:
                found[str(tile)] = _shares(on, tile)
            except (triton.OutOfResources, RuntimeError) as error:
                print(f"{tile}: {error}"[:150], flush=True)
                continue
            print(f"{tile}: {found[str(tile)]} % of {PREFILLS}", flush=True)
    best = sorted(found.items(), key=lambda item: -sum(item[1]))[:5]
    print(json.dumps({"best": best}))


if __name__ == "__main__":
    main()
