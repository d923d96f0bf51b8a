"""The shape of Qwen3-0.6B, where the host is the bottleneck: A5."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from benchmarks.gpu.drive import drive, latency
from benchmarks.gpu.job import Bench
from benchmarks.gpu.jobs_solo import Ground
from benchmarks.gpu.solo import profile
from benchmarks.gpu.workloads import uniform

SHAPE = "qwen0.6b"


@contextmanager
def ground(bench: Bench) -> Iterator[Ground]:
    """One engine for all."""
    yield Ground(bench, shape=SHAPE)


def _all(on: Ground) -> None:
    engine, bench = on.solo(), on.bench
    vocabulary = bench.config(SHAPE)["vocab_size"]
    bench.measured("A5.latency", latency(engine, vocabulary, 500, bench.count(320, 24)))
    requests = uniform(vocabulary, 16, 10, 40) if bench.quick else uniform(vocabulary)
    bench.measured("A5.uniform256", drive(engine, requests, slots=on.slots).rate)
    if engine.runner.device.type == "cuda":
        found = {rows: profile(engine.runner, vocabulary, rows, 500) for rows in (1, 64, 256)}
        print("\n".join(line for one in found.values() for line in one.lines))
        note = ", ".join(f"batch {rows} {100 * one.idle:.1f} %" for rows, one in found.items())
        bench.measured("A5.idle", 100 * max(one.idle for one in found.values()), note + " (under the profiler)")


CASES: Mapping[str, Callable[[Ground], None]] = {"A5": _all}
