"""The 8B shape on one GPU as users have it.

A11 (start), A3 through HTTP and the router, A12 (reload under load), P1 (`bireme profile`).
"""

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.gpu.job import Bench
from benchmarks.gpu.served import Streams, deployed, first_token, throughput
from benchmarks.gpu.shares import profiled, tell_shares
from benchmarks.gpu.weights import DEVICE, write_checkpoint
from benchmarks.gpu.workloads import conversations, fixed
from benchmarks.reload_pause import reload
from tests.support.deployment import Deployment

CLIENTS = 256
STREAMS = 32
TURNS = (("b", "finish"), ("a", "restart"), ("b", "restart"), ("a", "finish"))


@dataclass
class Ground:
    """One deployment for all cases that come after the start."""

    bench: Bench
    models: Path
    stack: ExitStack
    deployment: Deployment | None = None
    notes: list[str] = field(default_factory=list)

    def checkpoint(self, name: str) -> Path:
        """Weights `a` or `b`, written once."""
        path = self.models / name
        begin = time.monotonic()
        write_checkpoint(self.bench.config(), path, seed=ord(name))
        print(f"checkpoint {name} after {time.monotonic() - begin:.1f} s", flush=True)
        return path

    def start(self) -> float:
        """Start a deployment; seconds until its first token. Kernels are compiled once a call."""
        source = self.checkpoint("a")
        self.stack.close()
        cache = {"TRITON_CACHE_DIR": str(self.bench.scratch / "triton")}
        begin = time.monotonic()
        self.deployment = self.stack.enter_context(deployed(source, 1, 1, DEVICE, cache))
        return asyncio.run(first_token(self.deployment)) - begin

    def serving(self) -> Deployment:
        """The deployment."""
        if self.deployment is None:
            self.start()
        assert self.deployment is not None
        return self.deployment


@contextmanager
def ground(bench: Bench) -> Iterator[Ground]:
    """Whatever runs at the end is stopped; why it did not serve is in this job's log."""
    with ExitStack() as stack:
        on = Ground(bench, bench.scratch / "models", stack)
        try:
            yield on
        finally:
            if on.deployment is not None:
                print(on.deployment.tail()[-20_000:], flush=True)


def _start(on: Ground) -> None:
    source = on.checkpoint("a")
    on.bench.measured("A11.cold", on.start(), "`bireme up`: operator, router and worker included")
    _phases(on.serving())
    on.bench.measured("A11.warm", on.start(), _phases(on.serving()))
    size = sum(file.stat().st_size for file in source.iterdir())
    on.stack.close()
    on.deployment = None
    if DEVICE == "cuda":
        seconds = _load(source)
        on.bench.measured("A11.load", seconds, f"{size / 1e9:.1f} GB, {size / 1e9 / seconds:.1f} GB/s, one rank")


def _phases(deployment: Deployment) -> str:
    """When the worker said what, from its log."""
    lines = [line for line in deployment.tail().splitlines() if "rank " in line or "epoch" in line]
    print("\n".join(lines), flush=True)
    return ""


def _load(source: Path) -> float:
    """Read a model to the GPU in this process, whose context is there already."""
    import torch

    from bireme_worker.checkpoints.config import ModelConfig
    from bireme_worker.checkpoints.open import open_checkpoint
    from bireme_worker.models.load import load
    from bireme_worker.models.registry import build
    from bireme_worker.models.shard import Shard
    from bireme_worker.models.stages import stage_layers

    device = torch.device("cuda")
    torch.zeros(1, device=device)
    seconds = []
    for _ in range(2):  # the first warms the page cache
        torch.cuda.empty_cache()
        with closing(open_checkpoint(source)) as reader:
            config = ModelConfig.parse(reader.config, reader.generation_config)
            model = build(config, stage_layers(config, 0, 1), Shard(0, 1), torch.bfloat16)
            begin = time.perf_counter()
            load(model, reader, device)
            torch.cuda.synchronize()
            seconds.append(time.perf_counter() - begin)
        del model
    torch.cuda.empty_cache()  # the next deployment takes what is free
    print(f"loads took {seconds}", flush=True)
    return seconds[-1]


def _http(on: Ground) -> None:
    bench, deployment = on.bench, on.serving()
    requests = conversations(bench.vocabulary, bench.count(1000, 20), bench.count(1024, 60))
    asyncio.run(throughput(deployment.url, requests[: bench.count(64, 4)], bench.count(64, 4)))
    rate, failed = asyncio.run(throughput(deployment.url, requests, bench.count(CLIENTS, 8)))
    bench.measured("A3.http", rate, f"{len(failed)} of {len(requests)} failed")
    assert not failed, failed[0]


def _reload(on: Ground) -> None:
    on.checkpoint("b")
    asyncio.run(_reload_under_load(on))


async def _reload_under_load(on: Ground) -> None:
    bench, deployment = on.bench, await asyncio.to_thread(on.serving)
    load = Streams(deployment.url, bench.count(STREAMS, 2), fixed(bench.vocabulary, 1, 100, bench.count(500, 40))[0])
    pauses, notes = [], []
    try:
        await load.flowing(bench.count(2000, 50))
        begin = time.monotonic()
        await asyncio.sleep(bench.count(5, 1))
        usual = load.longest_gap(begin, time.monotonic())
        for revision, mode in TURNS:
            if bench.ends_at - time.time() < 25:
                break
            took = await reload(deployment, revision, mode, load)
            pauses.append(max(took["pause_s"], took["longest_gap_while_staging_s"]))
            notes.append(
                f"{mode} {took['pause_s']} s (staged in {took['staging_s']} s, meanwhile "
                f"{took['longest_gap_while_staging_s']} s)"
            )
            print(notes[-1], took, flush=True)
    finally:
        await load.stop()
    assert pauses, "no time was left for a reload"
    note = f"{'; '.join(notes)}; longest gap without a reload {usual:.3f} s"
    bench.measured("A12.gap", max(pauses), note)
    bench.measured("A12.failed", len(load.failed), f"of {len(load.answers)}" + "".join(load.failed[:1]))


def _profile(on: Ground) -> None:
    asyncio.run(_profile_under_load(on))


async def _profile_under_load(on: Ground) -> None:
    bench, deployment = on.bench, await asyncio.to_thread(on.serving)
    load = Streams(deployment.url, bench.count(STREAMS, 2), fixed(bench.vocabulary, 1, 500, bench.count(500, 100))[0])
    try:
        await load.flowing(bench.count(2000, 50))
        report = await asyncio.to_thread(profiled, bench, deployment)
    finally:
        await load.stop()
    assert not load.failed, load.failed[0]
    tell_shares(bench, "P1", report)


CASES: Mapping[str, Callable[[Ground], None]] = {"A11": _start, "A3h": _http, "A12": _reload, "P1": _profile}
