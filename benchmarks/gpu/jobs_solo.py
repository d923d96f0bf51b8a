"""The 8B shape on one GPU without HTTP: A1, A2, A3, A4, A10."""

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from benchmarks.gpu.drive import Solo, drive, gaps_ms, latency
from benchmarks.gpu.job import Bench, tell
from benchmarks.gpu.solo import CONTEXT, eagerly, forget, make_runner, one_by_one, synchronize
from benchmarks.gpu.workloads import conversations, fixed, uniform

LONG_CONTEXT = 32_768
CHUNK = 512
"""Token budget of a step where decodes shall not wait for prompts."""
SMALL_CHUNK = 256


@dataclass
class Ground:
    """One engine at a time: two models do not fit."""

    bench: Bench
    engine: Solo | None = None
    context: int = 0
    shape: str = "llama8b"

    def solo(self, context: int = CONTEXT) -> Solo:
        """The engine, for requests of this length."""
        if self.engine is None or self.context != context:
            self.engine = None
            forget()
            cache = {"kv_bytes": 64 << 20, "max_running_requests": 16} if self.bench.quick else {}
            config, begin = self.bench.config(self.shape), time.perf_counter()
            runner = make_runner(config, max_model_length=context, **cache)
            made = time.perf_counter()
            runner.capture()
            synchronize()
            again = time.perf_counter() - made
            tell(note=f"runner made in {made - begin:.1f} s, all graphs captured again in {again:.2f} s")
            self.engine, self.context = Solo(runner), context
            drive(self.engine, fixed(config["vocab_size"], self.bench.count(32, 4), 200, 8), slots=self.slots)
        return self.engine

    @property
    def slots(self) -> int:
        """Requests at once."""
        return self.bench.count(256, 16)


@contextmanager
def ground(bench: Bench) -> Iterator[Ground]:
    """The engine is made when the first case needs it."""
    yield Ground(bench)


def _latency(on: Ground) -> None:
    for context in (500, 4000):
        on.bench.measured(f"A1.{context}", latency(on.solo(), on.bench.vocabulary, context, on.bench.count(160, 24)))
    engine = on.solo()
    if engine.runner.device.type == "cuda":
        with one_by_one(engine.runner):
            plain = [latency(engine, on.bench.vocabulary, context, 160) for context in (500, 4000)]
        tell(note="A1 without early launches: " + ", ".join(f"{one:.3f} ms" for one in plain))


def _eager(on: Ground) -> None:
    engine, tokens = on.solo(), on.bench.count(80, 24)
    graph = latency(engine, on.bench.vocabulary, 500, tokens)
    with eagerly(engine.runner):
        eager = latency(engine, on.bench.vocabulary, 500, tokens)
    on.bench.measured("A10.ratio", eager / graph, f"{eager:.2f} → {graph:.2f} ms")


def _uniform(on: Ground) -> None:
    requests = uniform(on.bench.vocabulary, 16, 10, 40) if on.bench.quick else uniform(on.bench.vocabulary)
    on.bench.measured("A2.uniform256", drive(on.solo(), requests, slots=on.slots).rate)


def _fixed(on: Ground) -> None:
    requests = fixed(on.bench.vocabulary, 16, 10, 40) if on.bench.quick else fixed(on.bench.vocabulary, 256, 128, 2048)
    on.bench.measured("A2.fixed", drive(on.solo(), requests, slots=on.slots).rate)


def _conversations(on: Ground) -> None:
    requests = conversations(on.bench.vocabulary, on.bench.count(1000, 20), on.bench.count(1024, 60))
    on.bench.measured("A3.offline", drive(on.solo(), requests, slots=on.slots).rate)


def _long(on: Ground) -> None:
    engine, vocabulary, quick = on.solo(LONG_CONTEXT), on.bench.vocabulary, on.bench.quick
    requests = fixed(vocabulary, 8, 300 if quick else 20_000, 20 if quick else 2000)
    on.bench.measured("A4.rate", drive(engine, requests, slots=on.slots).rate, "prompts counted in the time")
    shown = {budget: _mixed(on, engine, budget) for budget in (2048, CHUNK, SMALL_CHUNK)}
    median, ratio, slowest = shown[CHUNK]
    other = ", ".join(f"{value:.2f}" for value in shown[2048])
    on.bench.measured(
        "A4.p99",
        ratio,
        f"32 decodes at 1,000, a prompt of 20,000 each 100 steps, {CHUNK} tokens a step: median {median:.2f} ms, "
        f"longest {slowest:.1f} ms; with 2,048 tokens median, ratio, longest: {other}",
    )
    median, ratio, slowest = shown[SMALL_CHUNK]
    note = f"the same with {SMALL_CHUNK} tokens a step: median {median:.2f} ms, longest {slowest:.1f} ms"
    on.bench.measured("A4.p99.256", ratio, note)


def _mixed(on: Ground, engine: Solo, budget: int) -> tuple[float, float, float]:
    """Median, p99 ÷ median, and longest gap of decodes while long prompts come."""
    vocabulary, quick = on.bench.vocabulary, on.bench.quick
    decoding = fixed(vocabulary, on.bench.count(32, 4), on.bench.count(1000, 30), on.bench.count(500, 40))
    late = [(100 * at // (10 if quick else 1), one) for at, one in enumerate(_prompts(vocabulary, quick=quick), 1)]
    run = drive(engine, decoding, slots=on.slots, budget=budget, late=late)
    gaps = sorted(gap for times in run.arrivals[: len(decoding)] for gap in gaps_ms(times, 4))
    median = statistics.median(gaps)
    return median, gaps[len(gaps) * 99 // 100] / median, gaps[-1]


def _prompts(vocabulary: int, *, quick: bool) -> list[tuple[list[int], int]]:
    return fixed(vocabulary, 4, 300 if quick else 20_000, 4)


CASES: Mapping[str, Callable[[Ground], None]] = {
    "A1": _latency,
    "A10": _eager,
    "A2u": _uniform,
    "A2f": _fixed,
    "A3": _conversations,
    "A4": _long,
}
