"""The shape of Qwen3-0.6B, where the host is the bottleneck: A5."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from benchmarks.gpu.drive import drive, latency
from benchmarks.gpu.job import Bench, tell
from benchmarks.gpu.jobs_solo import Ground
from benchmarks.gpu.solo import eagerly, one_by_one, profile
from benchmarks.gpu.workloads import fixed, uniform

SHAPE = "qwen0.6b"


@contextmanager
def ground(bench: Bench) -> Iterator[Ground]:
    """One engine for all."""
    yield Ground(bench, shape=SHAPE)


def _all(on: Ground) -> None:
    engine, bench = on.solo(), on.bench
    vocabulary = bench.config(SHAPE)["vocab_size"]
    bench.measured("A5.latency", latency(engine, vocabulary, 500, bench.count(320, 24)))
    if engine.runner.device.type == "cuda":
        alike = fixed(vocabulary, 4, 300, 64)
        ids = drive(engine, alike, hot=True).ids
        with eagerly(engine.runner):
            is_eager = drive(engine, alike, hot=True).ids == ids
        with one_by_one(engine.runner):
            is_plain = drive(engine, alike, hot=True).ids == ids
            plain, alone = latency(engine, vocabulary, 500, 320), profile(engine.runner, vocabulary, 1, 500)
        tell(
            note=f"tokens with early launches in graphs: those of eager steps {is_eager}, of plain launches {is_plain}"
        )
        tell(note=f"A5 without early launches: {plain:.3f} ms, idle {100 * alone.idle:.1f} % of {alone.step_us:.0f} us")
    requests = uniform(vocabulary, 16, 10, 40) if bench.quick else uniform(vocabulary)
    bench.measured("A5.uniform256", drive(engine, requests, slots=on.slots).rate)
    if engine.runner.device.type == "cuda":
        found = {rows: profile(engine.runner, vocabulary, rows, 500) for rows in (1, 64, 256)}
        print("\n".join(line for one in found.values() for line in one.lines))
        note = ", ".join(f"batch {rows} {100 * one.idle:.1f} %" for rows, one in found.items())
        tell(note=f"A5 with early launches: {found[1].step_us:.0f} us a step of batch 1 under the profiler")
        bench.measured("A5.idle", 100 * max(one.idle for one in found.values()), note + " (under the profiler)")


CASES: Mapping[str, Callable[[Ground], None]] = {"A5": _all}
