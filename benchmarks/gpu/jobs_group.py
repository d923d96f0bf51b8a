"""The 8B shape on two GPUs without HTTP: A7 (tensor 2) and A8 (pipeline 2), in real rank processes."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from benchmarks.gpu.drive import Formed, drive, latency
from benchmarks.gpu.formed import RANDOM, running
from benchmarks.gpu.job import Bench
from benchmarks.gpu.weights import describe
from benchmarks.gpu.workloads import conversations, fixed, uniform
from bireme.names import Env

LAYOUTS = {"tensor": (2, 1), "pipeline": (1, 2)}
TWICE = 512


@dataclass
class Ground:
    """A formed group."""

    bench: Bench
    engine: Formed

    @property
    def slots(self) -> int:
        """Requests at once on one GPU."""
        return self.bench.count(256, 16)


@contextmanager
def ground(bench: Bench) -> Iterator[Ground]:
    """Ranks that have loaded, formed and compiled."""
    tensor, stages = LAYOUTS[bench.job]
    source = bench.scratch / f"described-{bench.job}"
    source.mkdir(exist_ok=True)
    describe(bench.config(), source)
    changes = {Env.MAX_RUNNING_REQUESTS: str(TWICE)} if stages > 1 else {}
    if bench.quick:
        changes = {Env.MAX_RUNNING_REQUESTS: "32", Env.KV_BYTES: str(64 << 20)}
    with running(source, tensor, stages, RANDOM, **changes) as (engine, seconds):
        print(f"formed after {seconds:.1f} s, {engine.blocks} blocks", flush=True)
        on = Ground(bench, engine)
        drive(engine, fixed(bench.vocabulary, bench.count(32, 4), 200, 8), slots=on.slots)
        yield on


def _tensor(on: Ground) -> None:
    bench, vocabulary = on.bench, on.bench.vocabulary
    for context in (500, 4000):
        bench.measured(f"A7.{context}", latency(on.engine, vocabulary, context, bench.count(160, 24)))
    requests = uniform(vocabulary, 16, 10, 40) if bench.quick else uniform(vocabulary)
    bench.measured("A7.uniform256", drive(on.engine, requests, slots=on.slots).rate)


def _pipeline(on: Ground) -> None:
    bench, vocabulary = on.bench, on.bench.vocabulary
    requests = uniform(vocabulary, 16, 10, 40) if bench.quick else uniform(vocabulary)
    bench.measured("A8.uniform256", drive(on.engine, requests, slots=on.slots).rate)
    requests = conversations(vocabulary, bench.count(1000, 20), bench.count(1024, 60))
    bench.measured("A8.share", drive(on.engine, requests, slots=on.slots).rate)
    requests = uniform(vocabulary, 32, 10, 40) if bench.quick else uniform(vocabulary, TWICE)
    note = "lengths as uniform256, per GPU as many at once as there"
    bench.measured("A8.512", drive(on.engine, requests, slots=2 * on.slots).rate, note)


CASES: Mapping[str, Callable[[Ground], None]] = {"A7": _tensor, "A8": _pipeline}
