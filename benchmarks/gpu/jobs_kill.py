"""A rank killed under load in a deployment as users have it, with its spare ranks: A13 on two GPUs, M6 on four."""

import asyncio
import os
import random
import signal
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.gpu.job import Bench
from benchmarks.gpu.served import Streams, deployed, first_token, ranks
from benchmarks.gpu.weights import DEVICE, write_checkpoint
from benchmarks.gpu.workloads import Request, fixed
from tests.faults.parts import parts
from tests.support.deployment import Deployment

LAYOUTS = {"kill-tensor": ("A13.tp", 2, 1), "kill-pipeline": ("A13.pp", 1, 2), "kill-four": ("M6", 2, 2)}
POLL_S = 0.005
LIMIT_S = 90.0
TURN_S = 20.0
"""What a kill may take, until the next is not begun any more."""


@dataclass(frozen=True)
class Kill:
    """Seconds from the signal, and how many other ranks are not what they were."""

    unready_s: float
    serving_s: float
    changed: int


@dataclass
class Ground:
    """A deployment that serves."""

    bench: Bench
    layout: str
    deployment: Deployment
    kills: list[Kill] = field(default_factory=list)


@contextmanager
def ground(bench: Bench) -> Iterator[Ground]:
    """What the worker said is in this job's log."""
    layout, tensor, stages = LAYOUTS[bench.job]
    source = write_checkpoint(bench.config(), bench.scratch / "models" / "a", seed=ord("a"))
    with deployed(source, tensor, stages, DEVICE) as deployment:
        begin = time.monotonic()
        try:
            print(f"first token after {asyncio.run(first_token(deployment)) - begin:.1f} s", flush=True)
            yield Ground(bench, layout, deployment)
        finally:
            print(deployment.tail()[-30_000:], flush=True)


def _kill_all(on: Ground) -> None:
    bench = on.bench
    graph = fixed(bench.vocabulary, 1, 100, bench.count(4000, 400))[0]
    prefill = fixed(bench.vocabulary, 1, bench.count(7500, 500), 1)[0]
    half = time.time() + (bench.ends_at - time.time()) / 2
    for kind, request, ends_at in (("graph", graph, half), ("prefill", prefill, bench.ends_at)):
        asyncio.run(_kill_under(on, kind, request, ends_at))


async def _kill_under(on: Ground, kind: str, request: Request, ends_at: float) -> None:
    """The median is told after each kill, so that a call that is cut off has it."""
    bench, dice = on.bench, random.Random(kind)
    load = Streams(on.deployment.url, bench.count(64, 4), request)
    kills: list[Kill] = []
    try:
        for number in range(bench.kills):
            if number and time.time() + TURN_S > ends_at:
                break
            await asyncio.to_thread(_whole, on.deployment)
            await load.flowing(bench.count(200, 10))
            await asyncio.sleep(dice.uniform(0.2, 0.5))
            kills.append(await asyncio.to_thread(_kill, on.deployment, number))
            print(kind, kills[-1], flush=True)
            _tell(on, kind, kills, load)
    finally:
        await load.stop()


def _tell(on: Ground, kind: str, kills: list[Kill], load: Streams) -> None:
    prefix = f"{on.layout}.{kind}"
    unready, serving = [one.unready_s for one in kills], [one.serving_s for one in kills]
    note = f"{len(kills)} kills, longest {max(unready):.2f} s, failed streams {len(load.failed)}"
    on.bench.measured(f"{prefix}.unready", statistics.median(unready), note)
    on.bench.measured(f"{prefix}.serving", statistics.median(serving), f"longest {max(serving):.2f} s")
    on.bench.measured(f"{prefix}.changed", sum(one.changed for one in kills))
    on.bench.measured(f"{prefix}.lost", len(load.failed), f"of {len(load.answers)}" + "".join(load.failed[:1]))


def _kill(deployment: Deployment, number: int) -> Kill:
    before = ranks(deployment)
    victim = sorted(before)[number % len(before)]
    begin = time.monotonic()
    os.kill(before[victim][0], signal.SIGKILL)
    unready = _until(deployment, begin, ready=False)
    serving = _until(deployment, begin, ready=True)
    after = ranks(deployment)
    return Kill(unready, serving, sum(after[place] != one for place, one in before.items() if place != victim))


def _until(deployment: Deployment, begin: float, *, ready: bool) -> float:
    while deployment.ready(0) is not ready:
        assert time.monotonic() < begin + LIMIT_S, f"not {'ready' if ready else 'unready'}: {deployment.groups()}"
        time.sleep(POLL_S)
    return time.monotonic() - begin


def _whole(deployment: Deployment) -> None:
    """Wait until the last kill is over: the group serves, and each stage has a spare that has done its imports."""
    end, before = time.monotonic() + LIMIT_S, None
    while (spares := _spares_at_rest(deployment)) is None or spares != before or not deployment.ready(0):
        assert time.monotonic() < end, f"no spare ranks: {deployment.groups()}"
        before = spares
        time.sleep(0.3)


def _spares_at_rest(deployment: Deployment) -> list[tuple[str, ...]] | None:
    """Process and CPU time of each stage's spare; None while one is missing or runs."""
    found = parts(deployment)
    spares = [part for part in found if part.role == "spare"]
    if {part.stage for part in spares} != {part.stage for part in found if part.role == "supervisor"}:
        return None
    fields = [Path(f"/proc/{part.pid}/stat").read_text().rpartition(")")[2].split() for part in spares]
    if any(one[0] != "S" for one in fields):
        return None
    return [(str(part.pid), one[11], one[12]) for part, one in zip(spares, fields, strict=True)]


CASES: Mapping[str, Callable[[Ground], None]] = {"A13t": _kill_all, "A13p": _kill_all, "M6": _kill_all}
