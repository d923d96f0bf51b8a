"""The engine on one GPU, with random weights of a named shape made on the card: first right, then how fast.

Drives the rank's Runner with plans of the real scheduler, in one process. Checks: logits against the CPU's float32
path, chunked prompts against whole ones, graphs against eager steps. Measures: time between tokens at batch 1, output
tokens per second of 256 requests, where a step's time goes. Prints one JSON line last.

    python benchmarks/gpu/engine.py [--shape llama8b] [--cases check,latency,uniform256,fixed256,profile]
"""

import argparse
import gc
import json
import random
import statistics
import time
import zlib
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch.autograd import DeviceType  # type: ignore[attr-defined]

from benchmarks.gpu.kernel_tables import attention_table, gemv_table
from benchmarks.gpu.shapes import SHAPES
from bireme.wire.control import Checkpoint
from bireme.wire.plan import Admit, Plan, Row, Sampling, pack_ids, unpack_ids
from bireme.wire.requests import Submit
from bireme_worker.checkpoints.config import ModelConfig
from bireme_worker.checkpoints.reader import TensorInfo, bounds
from bireme_worker.engine.scheduler import Scheduler, SchedulerConfig
from bireme_worker.identity import Identity
from bireme_worker.models.load import expected_tensors
from bireme_worker.models.progress import Progress
from bireme_worker.parallel.communicator import SoloCommunicator
from bireme_worker.parallel.gate import EpochGate
from bireme_worker.rank.loading import read_runner
from bireme_worker.rank.runner import Handle, Runner

SLOW_STEP_S = 0.03
"""What takes longer has prompts in it."""
Request = tuple[list[int], int]


class RandomReader:
    """A checkpoint that is nowhere: each tensor is drawn from its name's seed on the GPU when it is read."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config = config
        self.generation_config: Mapping[str, Any] = {}
        shapes = expected_tensors(ModelConfig.parse(config))
        self.tensors: Mapping[str, TensorInfo] = {
            name: TensorInfo(name, shape, torch.bfloat16, Path()) for name, shape in shapes.items()
        }
        self._last: tuple[str, torch.Tensor] = ("", torch.empty(0))

    def read(self, name: str, slices: tuple[slice, ...] = ()) -> torch.Tensor:
        if self._last[0] != name:
            self._last = (name, self._draw(name))
        part = tuple(slice(*one) for one in bounds(self.tensors[name], slices))
        return self._last[1][part]

    def close(self) -> None:
        self._last = ("", torch.empty(0))

    def _draw(self, name: str) -> torch.Tensor:
        generator = torch.Generator("cuda").manual_seed(zlib.crc32(name.encode()))
        shape = self.tensors[name].shape
        if len(shape) == 1:
            return 1 + 0.1 * torch.randn(shape, generator=generator, device="cuda")
        drawn: torch.Tensor = torch.randn(shape, generator=generator, device="cuda", dtype=torch.bfloat16)
        return drawn.mul_(shape[1] ** -0.5)


def make_runner(config: Mapping[str, Any], **changes: Any) -> Runner:
    """A rank's runner that has begun epoch 1."""
    identity = Identity(
        group="benchmark",
        group_index=0,
        stage=0,
        stages=1,
        tensor=1,
        stage_layers=(),
        incarnation=1,
        leader="127.0.0.1",
        pod_ip="127.0.0.1",
        token=bytes(32),
        state_dir=Path(),
        revision="",
        model_name="random",
        model_aliases=(),
        checkpoint=Checkpoint("", ""),
        dtype="auto",
        max_model_length=8192,
        max_running_requests=256,
        max_batched_tokens=8192,
        max_queued_requests=4096,
        kv_bytes=0,
        prefix_caching=False,
        drain_timeout_s=0,
        http_processes=1,
        spare_rank=False,
    )
    runner = read_runner(replace(identity, **changes), 0, RandomReader(config), Progress())
    runner.begin(SoloCommunicator(EpochGate(1)))
    return runner


def drive(runner: Runner, requests: Sequence[Request], *, budget: int = 8192, slots: int = 256) -> dict[str, Any]:
    """Run all requests to their ends, two plans in flight; what was drawn, when results came, how long it took."""
    scheduler = Scheduler(SchedulerConfig(slots, budget, stages=1, depth=2, prefix_caching=False))
    runner.slots.reset()
    scheduler.begin(1, runner.cache.blocks, b"")
    for number, (prompt, count) in enumerate(requests):
        scheduler.submit(Submit(number, str(number), pack_ids(prompt), Sampling(), count), float(number))
    drawn: list[list[int]] = [[] for _ in requests]
    flying: deque[Handle] = deque()
    times = []
    torch.cuda.synchronize()
    start = time.perf_counter()
    while True:
        plan = scheduler.plan()
        if plan is not None:
            flying.append(runner.launch(plan))
            continue
        if not flying:
            break
        for emission in scheduler.complete(runner.collect(flying.popleft())):
            drawn[emission.sequence.request.key] += unpack_ids(emission.ids)
        times.append(time.perf_counter())
    return {"ids": drawn, "times": times, "seconds": time.perf_counter() - start}


def uniform(vocabulary: int, count: int, low: int, high: int, seed: int = 0) -> list[Request]:
    """``count`` requests with lengths in and out drawn evenly: the peers' uniform256 when they are 256, 100 to 1024."""
    lengths = random.Random(seed)
    pairs = [(lengths.randint(low, high), lengths.randint(low, high)) for _ in range(count)]
    tokens = random.Random(seed + 1)
    return [([tokens.randrange(10, vocabulary - 10) for _ in range(a)], b) for a, b in pairs]


def fixed(vocabulary: int, count: int, given: int, wanted: int) -> list[Request]:
    tokens = random.Random(2)
    return [([tokens.randrange(10, vocabulary - 10) for _ in range(given)], wanted) for _ in range(count)]


def latency(runner: Runner, vocabulary: int, context: int, tokens: int = 128) -> float:
    """Median milliseconds between tokens of one request."""
    times = drive(runner, fixed(vocabulary, 1, context, tokens))["times"][8:]
    return 1e3 * float(statistics.median(b - a for a, b in pairwise(times)))


def throughput(runner: Runner, requests: Sequence[Request]) -> float:
    """Output tokens per second."""
    result = drive(runner, requests)
    assert [len(ids) for ids in result["ids"]] == [count for _, count in requests]
    gaps = sorted(b - a for a, b in pairwise(result["times"]))
    slow = [gap for gap in gaps if gap > SLOW_STEP_S]
    print(f"{len(gaps)} steps in {result['seconds']:.2f} s; {len(slow)} slow ones take {sum(slow):.2f} s", flush=True)
    return float(sum(count for _, count in requests) / result["seconds"])


@contextmanager
def eagerly(runner: Runner) -> Iterator[None]:
    """Without graphs."""
    graphs, runner._graphs = runner._graphs, None  # noqa: SLF001  the comparison is what this file is for
    yield
    runner._graphs = graphs  # noqa: SLF001


# -- checks


def logits_of(runner: Runner, plans: Sequence[Plan]) -> list[torch.Tensor]:
    """The logits of every sampling row, plan by plan."""
    seen: list[torch.Tensor] = []
    original = runner.model.logits

    def logits(x: torch.Tensor) -> torch.Tensor:
        values = original(x)
        seen.append(values.float().cpu().clone())
        return values

    runner.model.logits = logits  # type: ignore[method-assign]
    for plan in plans:
        runner.collect(runner.launch(plan))
    del runner.model.logits
    return seen


def mixed_plans(vocabulary: int) -> list[Plan]:
    """Whole prompts, a decode beside a chunk, the rest of the chunk over its cached beginning; all ids given."""
    tokens = random.Random(7)
    ids = [tokens.randrange(vocabulary) for _ in range(400)]
    greedy = Sampling(logprobs=0)  # keeps these steps out of the graphs: the logits are looked at
    admits = tuple(Admit(slot, greedy) for slot in (1, 2, 3))
    return [
        Plan(1, 0, (Row(1, 0, 300, pack_ids(ids[:300]), tuple(range(1, 20)), 0),), admits),
        Plan(1, 1, (Row(2, 0, 40, pack_ids(ids[:40]), (20, 21, 22), 0), Row(1, 300, 1, pack_ids(ids[300:301]), (), 1))),
        Plan(
            1,
            2,
            (
                Row(3, 0, 100, pack_ids(ids[9:109]), tuple(range(23, 40)), -1),
                Row(1, 301, 1, pack_ids(ids[301:302]), (), 2),
                Row(2, 40, 1, pack_ids(ids[40:41]), (), 1),
            ),
        ),
        Plan(1, 3, (Row(3, 100, 150, pack_ids(ids[109:259]), (), 0), Row(2, 41, 1, pack_ids(ids[41:42]), (), 2))),
    ]


def check(config: Mapping[str, Any]) -> dict[str, Any]:
    """Numbers of a model of this shape with four layers."""
    small = {**config, "num_hidden_layers": 4}
    vocabulary = config["vocab_size"]
    plans = mixed_plans(vocabulary)
    reference = logits_of(make_runner(small, device="cpu", dtype="float32", kv_bytes=1 << 28), plans)
    report: dict[str, Any] = {}
    for dtype, limit in (("float32", 1e-3), ("bfloat16", 2e-2)):
        runner = make_runner(small, dtype=dtype, kv_bytes=1 << 30, max_running_requests=32)
        found = logits_of(runner, plans)
        wrong = [float((a - b).norm() / b.norm()) for a, b in zip(found, reference, strict=True)]
        assert max(wrong) < limit, f"{dtype}: relative error {wrong}"
        report[f"{dtype}_error"] = round(max(wrong), 6)
        requests = uniform(vocabulary, 8, 30, 90)
        whole = drive(runner, requests)["ids"]
        with eagerly(runner):
            eager = drive(runner, requests)["ids"]
        same = sum(a == b for a, b in zip(whole, eager, strict=True))
        report[f"{dtype}_graph_equals_eager"] = f"{same}/8"
        chunked = drive(runner, requests, budget=32, slots=32)["ids"]
        report[f"{dtype}_chunked_equals_whole"] = f"{sum(a == b for a, b in zip(whole, chunked, strict=True))}/8"
        assert dtype != "float32" or (same == 8 and chunked == whole), report
        del runner
        gc.collect()
        torch.cuda.empty_cache()
    return report


# -- where the time goes


def profile(runner: Runner, vocabulary: int, rows: int, context: int) -> list[str]:
    """The kernels of decode steps, by time per step."""
    requests = fixed(vocabulary, rows, context, 24 + rows * context // 8192)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as trace:
        drive(runner, requests)
    events = [e for e in trace.events() if e.device_type == DeviceType.CUDA]
    events.sort(key=lambda e: e.time_range.start)
    cut = [e for e in events if e.name.startswith("_choose")][-17:-1]
    begin, end = cut[0].time_range.end, cut[-1].time_range.end
    inside = [e for e in events if begin <= e.time_range.start and e.time_range.end <= end]
    steps = len(cut) - 1
    sums: dict[str, tuple[float, int]] = {}
    for event in inside:
        total, count = sums.get(event.name, (0.0, 0))
        sums[event.name] = (total + event.time_range.elapsed_us(), count + 1)
    busy = sum(total for total, _ in sums.values())
    lines = [f"{rows} rows at {context}: step {(end - begin) / steps:.0f} us, kernels {busy / steps:.0f} us"]
    for name, (total, count) in sorted(sums.items(), key=lambda item: -item[1][0])[:14]:
        lines.append(f"  {total / steps:8.1f} us {count / steps:6.1f} x {total / count:7.2f}  {name[:80]}")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--shape", choices=SHAPES, default="llama8b")
    parser.add_argument("--cases", default="check,latency,eager,uniform256,profile")
    arguments = parser.parse_args()
    config, cases = SHAPES[arguments.shape], arguments.cases.split(",")
    vocabulary = config["vocab_size"]
    report: dict[str, Any] = {"shape": arguments.shape, "card": torch.cuda.get_device_name()}
    if "check" in cases:
        report["check"] = check(config)
        print(report["check"], flush=True)
    if "kernels" in cases:
        print("\n".join((*gemv_table(config), *attention_table())), flush=True)
        torch.cuda.empty_cache()
    start = time.perf_counter()
    runner = make_runner(config)
    torch.cuda.synchronize()
    report["load_and_capture_s"] = round(time.perf_counter() - start, 1)
    report["kv_blocks"] = runner.cache.blocks
    print(report, flush=True)
    drive(runner, fixed(vocabulary, 32, 200, 8))  # compiles what eager steps need
    if "latency" in cases:
        report["latency_ms"] = {n: round(latency(runner, vocabulary, n), 3) for n in (500, 4000)}
        print(report["latency_ms"], flush=True)
    if "eager" in cases:
        with eagerly(runner):
            report["eager_ms"] = round(latency(runner, vocabulary, 500, 40), 3)
    if "profile" in cases:
        for rows, context in ((1, 500), (32, 500), (256, 800)):
            print("\n".join(profile(runner, vocabulary, rows, context)), flush=True)
    if "uniform256" in cases:
        report["uniform256_tok_s"] = round(throughput(runner, uniform(vocabulary, 256, 100, 1024)))
        print(report["uniform256_tok_s"], flush=True)
    if "fixed256" in cases:
        report["fixed256_tok_s"] = round(throughput(runner, fixed(vocabulary, 256, 128, 2048)))
    print(json.dumps(report))


if __name__ == "__main__":
    main()
