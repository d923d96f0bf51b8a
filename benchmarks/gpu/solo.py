"""One rank's runner in this process over random weights, and where the time of its steps goes."""

import gc
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.autograd import DeviceType  # type: ignore[attr-defined]

from benchmarks.gpu.drive import BUDGET, SLOTS, Solo, drive
from benchmarks.gpu.weights import RandomReader
from benchmarks.gpu.workloads import fixed
from bireme.wire.control import Checkpoint
from bireme_worker.identity import Identity
from bireme_worker.models.progress import Progress
from bireme_worker.parallel.communicator import SoloCommunicator
from bireme_worker.parallel.gate import EpochGate
from bireme_worker.rank.loading import read_runner
from bireme_worker.rank.runner import Runner

STEPS = 16
"""Steps of a profile."""
CONTEXT = 8192
_DRAW = "_choose"
"""How the kernel at the end of a step is called."""


def make_runner(config: Mapping[str, Any], **changes: Any) -> Runner:
    """A rank's runner that has begun epoch 1."""
    values: dict[str, Any] = {
        "group": "benchmark",
        "group_index": 0,
        "stage": 0,
        "stages": 1,
        "tensor": 1,
        "stage_layers": (),
        "incarnation": 1,
        "leader": "127.0.0.1",
        "pod_ip": "127.0.0.1",
        "token": bytes(32),
        "state_dir": Path(),
        "revision": "",
        "model_name": "random",
        "model_aliases": (),
        "checkpoint": Checkpoint("", ""),
        "dtype": "auto",
        "max_model_length": CONTEXT,
        "max_running_requests": SLOTS,
        "max_batched_tokens": BUDGET,
        "max_queued_requests": 4096,
        "kv_bytes": 0,
        "prefix_caching": False,
        "drain_timeout_s": 0,
        "http_processes": 1,
        "spare_rank": False,
    }
    runner = read_runner(Identity(**{**values, **changes}), 0, RandomReader(config), Progress())
    runner.begin(SoloCommunicator(EpochGate(1)))
    synchronize()
    return runner


def synchronize() -> None:
    """Wait for the device, if there is one."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def forget() -> None:
    """Give back what nobody refers to any more."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


@contextmanager
def eagerly(runner: Runner) -> Iterator[None]:
    """Without graphs."""
    graphs, runner._graphs = runner._graphs, None  # noqa: SLF001  the comparison is what this file is for
    try:
        yield
    finally:
        runner._graphs = graphs  # noqa: SLF001


@contextmanager
def one_by_one(runner: Runner) -> Iterator[None]:
    """With each kernel launched after the end of the one before, also in graphs."""
    from bireme_worker.kernels.launch import plainly  # where there is Triton

    try:
        with plainly():
            _capture_first(runner)
            yield
    finally:
        _capture_first(runner)


def _capture_first(runner: Runner) -> None:
    """Capture as the first time: every step is run once, which compiles its kernels. There is no room for two sets."""
    runner._graphs = None  # noqa: SLF001
    forget()
    runner.capture()
    synchronize()


@dataclass(frozen=True)
class Profile:
    """Microseconds of a step and of those with a kernel, and the kernels by their time.

    A kernel that is set up early and waits for the one before counts: then only the step's time tells what was won.
    """

    step_us: float
    busy_us: float
    lines: list[str]

    @property
    def idle(self) -> float:
        """Share of the step without a kernel."""
        return 1 - self.busy_us / self.step_us


def union_us(spans: Iterable[tuple[float, float]]) -> float:
    """How long at least one of ``spans`` lasted."""
    total, until = 0.0, float("-inf")
    for begin, end in sorted(spans):
        total += max(end - max(begin, until), 0.0)
        until = max(until, end)
    return total


def profile(runner: Runner, vocabulary: int, rows: int, context: int) -> Profile:
    """The kernels of decode steps."""
    requests = fixed(vocabulary, rows, context, STEPS + 8 + rows * context // BUDGET)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as trace:
        drive(Solo(runner), requests)
        synchronize()
    if directory := os.environ.get("TRACE_OUT"):
        trace.export_chrome_trace(f"{directory}/solo-{rows}x{context}.json")
    events = [event for event in trace.events() if event.device_type == DeviceType.CUDA]
    events.sort(key=lambda event: event.time_range.start)
    ends = [event.time_range.end for event in events if event.name.startswith(_DRAW)][-STEPS - 1 : -1]
    inside = [event for event in events if ends[0] <= event.time_range.start and event.time_range.end <= ends[-1]]
    steps = len(ends) - 1
    sums: dict[str, list[float]] = {}
    for event in inside:
        sums.setdefault(event.name, []).append(event.time_range.elapsed_us())
    busy = union_us([(event.time_range.start, event.time_range.end) for event in inside])
    found = Profile((ends[-1] - ends[0]) / steps, busy / steps, [])
    found.lines.append(f"{rows} rows at {context}: step {found.step_us:.0f} us, kernels {found.busy_us:.0f} us")
    for name, took in sorted(sums.items(), key=lambda item: -sum(item[1]))[:14]:
        found.lines.append(
            f"  {sum(took) / steps:8.1f} us {len(took) / steps:6.1f} x {sum(took) / len(took):7.2f}  {name[:80]}"
        )
    return found
