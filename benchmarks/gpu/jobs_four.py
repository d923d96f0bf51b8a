"""Four GPUs of one host without HTTP, in real rank processes with random weights: M1, M2, M3, M5 and M7."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from benchmarks.gpu.drive import Formed, drive, gaps_ms, latency
from benchmarks.gpu.formed import RANDOM, running
from benchmarks.gpu.job import Bench, tell
from benchmarks.gpu.profiled import keep, under_load
from benchmarks.gpu.shapes import quantized
from benchmarks.gpu.shares import STEPS, tell_shares
from benchmarks.gpu.weights import describe
from benchmarks.gpu.workloads import fixed, uniform
from bireme.names import Env
from bireme_worker.engine.sequence import BLOCK_SIZE

TP4, TP2, PP4, BOTH = (4, 1), (2, 1), (1, 4), (2, 2)
LARGE = "175b"
CONTEXT = 500
FEW = 16
"""Slots where the weights take most of the memory."""
FOUR_GROUPS = {"hidden_size": 256}
"""Of the tiny shape: each of four ranks has a whole group of quantized numbers."""
BATCHES = (4, 8, 16, 32, 64)
MOST_P99_MS = 50.0


@dataclass(frozen=True)
class Ground:
    """Nothing is laid: each case needs groups of its own."""

    bench: Bench

    @contextmanager
    def group(self, shape: str, weights: str, layout: tuple[int, int], slots: int) -> Iterator[tuple[Formed, int]]:
        """A formed group that has compiled, and its vocabulary."""
        bench = self.bench
        config = quantized({**bench.config(shape), **(FOUR_GROUPS if bench.quick else {})}, weights)
        source = bench.scratch / f"described-{shape}-{weights}"
        source.mkdir(exist_ok=True)
        describe(config, source)
        changes: dict[str, str] = {Env.MAX_RUNNING_REQUESTS: str(slots)}
        if bench.quick:
            changes |= {Env.KV_BYTES: str(64 << 20)}
        with running(source, layout[0], layout[1], RANDOM, **changes) as (engine, seconds):
            name = f"{shape} {weights} {layout[0]}x{layout[1]}"
            tell(note=f"{name}: formed after {seconds:.1f} s, {engine.blocks} blocks")
            vocabulary = config["vocab_size"]
            drive(engine, fixed(vocabulary, 4, 200, 8), slots=slots)
            yield engine, vocabulary

    def latency(self, engine: Formed, vocabulary: int) -> float:
        """Milliseconds between tokens at batch 1."""
        return latency(engine, vocabulary, CONTEXT, self.bench.count(160, 24))


@contextmanager
def ground(bench: Bench) -> Iterator[Ground]:
    """No preparation."""
    yield Ground(bench)


def _one_request(on: Ground) -> None:
    with on.group("llama70b", "none", TP4, FEW) as (engine, vocabulary):
        on.bench.measured("M1.latency", on.latency(engine, vocabulary))


def _scaling(on: Ground) -> None:
    found = {}
    for layout in (TP2, TP4):
        with on.group("llama70b", "int8", layout, FEW) as (engine, vocabulary):
            found[layout] = on.latency(engine, vocabulary)
    on.bench.measured("M2.ratio", found[TP2] / found[TP4], f"{found[TP2]:.2f} ms and {found[TP4]:.2f} ms")


def _rate(key: str, layout: tuple[int, int], on: Ground) -> None:
    bench = on.bench
    count = bench.count(1024, 32)
    with on.group("llama8b", "none", layout, count) as (engine, vocabulary):
        requests = uniform(vocabulary, 32, 10, 40) if bench.quick else uniform(vocabulary, count)
        bench.measured(key, drive(engine, requests, slots=count).rate, "lengths as uniform256")


def _large(key: str, layout: tuple[int, int], on: Ground) -> None:
    bench = on.bench
    with on.group(LARGE, "int8", layout, BATCHES[-1]) as (engine, vocabulary):
        bench.measured(f"{key}.latency", on.latency(engine, vocabulary))
        largest, shown, tokens = 0, [], bench.count(100, 12)
        for count in BATCHES[: bench.count(len(BATCHES), 2)]:
            if count * (CONTEXT + tokens + BLOCK_SIZE) > engine.blocks * BLOCK_SIZE:
                shown.append(f"{count}: no room for their keys and values")
                break
            p99 = _p99_ms(engine, vocabulary, count, tokens)
            shown.append(f"{count}: {p99:.1f} ms")
            if p99 > MOST_P99_MS:
                break
            largest = count
        bench.measured(f"{key}.batch", largest, f"p99 by batch {', '.join(shown)}")


def _p99_ms(engine: Formed, vocabulary: int, count: int, tokens: int) -> float:
    """Of decode steps alone: the gaps while prompts are computed are left out."""
    run = drive(engine, fixed(vocabulary, count, CONTEXT, tokens), slots=BATCHES[-1])
    started = max(times[0] for times in run.arrivals)
    gaps = sorted(gap for times in run.arrivals for gap in gaps_ms([at for at in times if at >= started]))
    return gaps[len(gaps) * 99 // 100]


def _profiles(on: Ground) -> None:
    for key, shape, weights in (("M7.70b", "llama70b", "none"), ("M7.175b", LARGE, "int8")):
        with on.group(shape, weights, TP4, FEW) as (engine, vocabulary):
            report = under_load(engine, vocabulary, 1, STEPS)
        keep(report, on.bench.keep / f"profile-{shape}-4x1")
        tell_shares(on.bench, key, report)


CASES: Mapping[str, Callable[[Ground], None]] = {
    "M1": _one_request,
    "M2": _scaling,
    "M3p": partial(_rate, "M3.pp4", PP4),
    "M3t": partial(_rate, "M3.tp2pp2", BOTH),
    "M5t": partial(_large, "M5.tp4", TP4),
    "M5p": partial(_large, "M5.tp2pp2", BOTH),
    "M7": _profiles,
}
