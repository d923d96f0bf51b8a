"""Shapes split over the GPUs of one host, without HTTP, in real rank processes with random weights.

M1, M2, M3, M5 and M7 need four GPUs; H2, H3, H5 and H7 are what two can tell of the same questions.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

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

ONE, TP2, TP4, PP2, PP4, BOTH = (1, 1), (2, 1), (4, 1), (1, 2), (1, 4), (2, 2)
Layout = tuple[int, int]
"""Tensor-parallel ranks of a stage, stages."""
LARGE = "175b"
CONTEXT = 500
FEW = 16
"""Slots where the weights take most of the memory."""
FOUR_GROUPS = {"hidden_size": 256}
"""Of the tiny shape: each of four ranks has a whole group of quantized numbers."""
BATCHES = (4, 8, 16, 32, 64)
MOST_P99_MS = 50.0
SHARED_KV_BYTES = 4 << 30
"""Of each rank where two share a GPU, so that neither takes what is free."""


@dataclass(frozen=True)
class Ground:
    """Nothing is laid: each case needs groups of its own."""

    bench: Bench

    @contextmanager
    def group(
        self, shape: str, weights: str, layout: Layout, slots: int, kv_bytes: int = 0
    ) -> Iterator[tuple[Formed, int]]:
        """A formed group that has compiled, and its vocabulary; ``kv_bytes`` of each rank, 0: all that is free."""
        bench = self.bench
        config = quantized({**bench.config(shape), **(FOUR_GROUPS if bench.quick else {})}, weights)
        source = bench.scratch / f"described-{shape}-{weights}"
        source.mkdir(exist_ok=True)
        describe(config, source)
        changes: dict[str, str] = {Env.MAX_RUNNING_REQUESTS: str(slots)}
        if bench.quick or kv_bytes:
            changes |= {Env.KV_BYTES: str(64 << 20 if bench.quick else kv_bytes)}
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


def _scaling(key: str, few: Layout, many: Layout, on: Ground) -> None:
    found = {}
    for layout in (few, many):
        with on.group("llama70b", "int8", layout, FEW) as (engine, vocabulary):
            found[layout] = on.latency(engine, vocabulary)
    on.bench.measured(key, found[few] / found[many], f"{found[few]:.2f} ms and {found[many]:.2f} ms")


def _same_ids(on: Ground) -> None:
    """Both stages use the same two GPUs by turns, so this tells whether the layout computes right, and no time."""
    found = []
    for layout in (TP2, BOTH):
        with on.group("llama8b", "none", layout, FEW, SHARED_KV_BYTES) as (engine, vocabulary):
            found.append(drive(engine, fixed(vocabulary, 8, 200, 32), slots=FEW, hot=True).ids)
    different = sum(ours != theirs for ours, theirs in zip(*found, strict=True))
    on.bench.measured("H3.different", different, "of 8 requests, half of them drawn")


def _rate(key: str, layout: Layout, on: Ground) -> None:
    bench = on.bench
    count = bench.count(1024, 32)
    with on.group("llama8b", "none", layout, count) as (engine, vocabulary):
        requests = uniform(vocabulary, 32, 10, 40) if bench.quick else uniform(vocabulary, count)
        bench.measured(key, drive(engine, requests, slots=count).rate, "lengths as uniform256")


def _large(key: str, layout: Layout, on: Ground) -> None:
    bench = on.bench
    with on.group(LARGE, "fp8", layout, BATCHES[-1]) as (engine, vocabulary):
        bench.measured(f"{key}.latency", on.latency(engine, vocabulary))
        largest, shown, tokens = 0, [], bench.count(300, 12)
        for count in BATCHES[: bench.count(len(BATCHES), 2)]:
            if count * (CONTEXT + tokens + BLOCK_SIZE) > engine.blocks * BLOCK_SIZE:
                shown.append(f"{count}: no room for their keys and values")
                break
            p99, described = _steps_ms(engine, vocabulary, count, tokens)
            shown.append(f"{count}: {described}")
            if p99 > MOST_P99_MS:
                break
            largest = count
        bench.measured(f"{key}.batch", largest, f"p99 by batch {', '.join(shown)}")


def _steps_ms(engine: Formed, vocabulary: int, count: int, tokens: int) -> tuple[float, str]:
    """Return p99 of decode steps alone, and what it looks like: gaps while prompts are computed are left out."""
    run = drive(engine, fixed(vocabulary, count, CONTEXT, tokens), slots=BATCHES[-1])
    started = max(times[0] for times in run.arrivals)
    gaps = sorted(gap for times in run.arrivals for gap in gaps_ms([at for at in times if at >= started]))
    median, p99 = gaps[len(gaps) // 2], gaps[len(gaps) * 99 // 100]
    own = [1e3 * (after - at) for at, after in pairwise(at for at in run.arrivals[0] if at >= started)]
    return p99, f"{p99:.1f} ms (median {median:.1f}, longest {max(own):.1f} at step {own.index(max(own))})"


def _profile(key: str, shape: str, weights: str, layout: Layout, on: Ground) -> None:
    with on.group(shape, weights, layout, FEW) as (engine, vocabulary):
        report = under_load(engine, vocabulary, 1, STEPS)
    keep(report, on.bench.keep / f"profile-{shape}-{layout[0]}x{layout[1]}")
    tell_shares(on.bench, key, report)


CASES: Mapping[str, Callable[[Ground], None]] = {
    "M1": _one_request,
    "M2": partial(_scaling, "M2.ratio", TP2, TP4),
    "M3p": partial(_rate, "M3.pp4", PP4),
    "M3t": partial(_rate, "M3.tp2pp2", BOTH),
    "M5t": partial(_large, "M5.tp4", TP4),
    "M5p": partial(_large, "M5.tp2pp2", BOTH),
    "M7h": partial(_profile, "M7.70b", "llama70b", "none", TP4),
    "M7g": partial(_profile, "M7.175b", LARGE, "fp8", TP4),
    "H2": partial(_scaling, "H2.ratio", ONE, TP2),
    "H3": _same_ids,
    "H5t": partial(_large, "H5.tp2", TP2),
    "H5p": partial(_large, "H5.pp2", PP2),
    "H7": partial(_profile, "H7", LARGE, "fp8", TP2),
}
