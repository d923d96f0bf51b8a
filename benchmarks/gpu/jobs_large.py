"""The 70B shape with quantized weights, tensor 2 on two GPUs, in real rank processes: A6."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from benchmarks.gpu.drive import drive, latency
from benchmarks.gpu.formed import PLAIN, RANDOM, running
from benchmarks.gpu.job import Bench, tell
from benchmarks.gpu.shapes import quantized
from benchmarks.gpu.weights import describe
from benchmarks.gpu.workloads import fixed
from bireme.names import Env

SHAPE = "llama70b"
SLOTS = 16
"""Few: the weights take most of the memory."""


@dataclass(frozen=True)
class Ground:
    """Nothing is laid: each format needs a group of its own."""

    bench: Bench


@contextmanager
def ground(bench: Bench) -> Iterator[Ground]:
    """No preparation."""
    yield Ground(bench)


def _latency(number_format: str, on: Ground, module: str = RANDOM) -> None:
    bench = on.bench
    config = quantized(bench.config(SHAPE), number_format)
    source = bench.scratch / f"described-{number_format}"
    source.mkdir(exist_ok=True)
    describe(config, source)
    changes = {Env.MAX_RUNNING_REQUESTS: str(SLOTS)}
    if bench.quick:
        changes |= {Env.KV_BYTES: str(64 << 20)}
    with running(source, 2, 1, module, **changes) as (engine, seconds):
        tell(note=f"{number_format}: formed after {seconds:.1f} s, {engine.blocks} blocks")
        drive(engine, fixed(config["vocab_size"], 4, 200, 8), slots=SLOTS)
        found = latency(engine, config["vocab_size"], 500, bench.count(160, 24))
    if module == RANDOM:
        bench.measured(f"A6.{number_format}", found)
    else:
        tell(note=f"A6.{number_format} without early launches: {found:.3f} ms")


CASES: Mapping[str, Callable[[Ground], None]] = {
    "A6i": partial(_latency, "int8"),
    "A6f": partial(_latency, "fp8"),
    "A6p": partial(_latency, "fp8", module=PLAIN),
}
