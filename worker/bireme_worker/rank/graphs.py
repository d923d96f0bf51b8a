"""Decode steps as CUDA graphs: one replay instead of hundreds of launches, which a batch of one would wait for.

A graph is captured per batch size over the inputs' fixed addresses; a step with fewer rows runs in the next larger one,
its last rows being padding (slot 0, block 0). Only what every decode step has is in them: one token per row, every row
samples, temperature at most. Other steps run eagerly. All graphs share one memory pool: only one runs at a time.
"""

from collections.abc import Callable
from typing import Final

import torch

from bireme_worker.rank.inputs import Shape
from bireme_worker.sampling.draw import Draw
from bireme_worker.sampling.sampler import Sampled

SMALL_SIZES: Final = (1, 2, 4, 8)
SIZE_STEP: Final = 16
MOST_ROWS: Final = 512
"""Above this many rows a step is so long that nobody waits for launches."""

Compute = Callable[[Shape], Sampled | None]


def batch_sizes(rows: int) -> list[int]:
    """Sizes that are captured for up to ``rows`` rows, rising."""
    most = min(rows, MOST_ROWS)
    steps = range(SIZE_STEP, most + SIZE_STEP, SIZE_STEP)
    return sorted({size for size in (*SMALL_SIZES, *steps) if size < most} | {most})


def telling_sizes(rows: int) -> list[int]:
    """Sizes whose steps want all the kernels that any does: these follow from the next power of two."""
    return sorted({1 << (size - 1).bit_length(): size for size in batch_sizes(rows)}.values())


class DecodeGraphs:
    """Graphs of ``compute``, the whole device side of a step, for up to ``rows`` rows."""

    def __init__(self, compute: Compute, rows: int) -> None:
        self._compute = compute
        self._sizes = batch_sizes(rows)
        self._pool = torch.cuda.graph_pool_handle()
        self._graphs: dict[int, tuple[torch.cuda.CUDAGraph, Sampled | None]] = {}

    def capture(self, *, run: bool = True) -> None:
        """Capture anew. The inputs must hold padding only: with ``run`` every step is run once first.

        That compiles what it needs, which has happened when the same steps have been captured before.
        """
        self._graphs.clear()
        self._pool = torch.cuda.graph_pool_handle()  # a pool ends with its last graph
        # The largest first: the pool then has room for all.
        for size in reversed(self._sizes):
            self._graphs[size] = self._captured(padded(size), run=run)

    def fit(self, shape: Shape) -> bool:
        """Whether a step may be replayed."""
        return shape.is_plain and shape.rows <= self._sizes[-1] and bool(self._graphs)

    def replay(self, shape: Shape) -> Sampled | None:
        """Run a fitting step whose inputs are filled; the tensors are valid until the next replay, in stream order.

        None on a stage that does not sample.
        """
        graph, sampled = self._graphs[next(size for size in self._sizes if size >= shape.rows)]
        graph.replay()
        return sampled and Sampled(sampled.ids[: shape.rows], sampled.bad[: shape.rows], None)

    def _captured(self, shape: Shape, *, run: bool) -> tuple[torch.cuda.CUDAGraph, Sampled | None]:
        if run:
            side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                self._compute(shape)
            torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        # Other threads (heartbeats, staging) may go on using CUDA.
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            return graph, self._compute(shape)


def padded(size: int) -> Shape:
    """A decode step of ``size`` rows."""
    return Shape(
        tokens=size,
        rows=size,
        single=size,
        spans=(),
        lengths=(1,) * size,
        waits_for=frozenset(),
        sampled=(0,) * size,
        draw=Draw(rows=size),
    )
