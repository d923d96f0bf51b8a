"""A rank killed under load in a deployment as users have it, with its spare ranks: A13 on two GPUs, M6 on four.

H6 is M6 on two GPUs: the ranks of both stages share them, so what it takes to serve again tells nothing of four.

Each case is one kind of load. A wait says every 5 s in the job's log how it goes, and fails after 60 s with what router
and leader say; the next case then goes on. All logs of the deployment are kept whole beside the job's.
"""

import asyncio
import os
import random
import shutil
import signal
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.gpu.job import Bench
from benchmarks.gpu.served import Streams, deployed, first_token, ranks
from benchmarks.gpu.waits import Wait
from benchmarks.gpu.weights import DEVICE, write_checkpoint
from benchmarks.gpu.workloads import fixed
from tests.faults.parts import parts
from tests.support.deployment import Deployment

LAYOUTS = {
    "kill-tensor": ("A13.tp", 2, 1, 0),
    "kill-pipeline": ("A13.pp", 1, 2, 0),
    "kill-four": ("M6", 2, 2, 0),
    "kill-shared": ("H6", 2, 2, 16 << 30),
}
"""By job: prefix of its lines, ranks of a stage, stages, and bytes of keys and values where ranks share a GPU."""
POLL_S = 0.005
TURN_S = 14.0
"""What a kill may take, until the next is not begun any more."""


@dataclass(frozen=True)
class Kind:
    """A load: ``clients`` streams, each of ``given`` ids in and ``wanted`` out; before a kill ``parts`` come."""

    name: str
    clients: int
    given: int
    wanted: int
    parts: int


GRAPH = Kind("graph", clients=64, given=100, wanted=4000, parts=200)
PREFILL = Kind("prefill", clients=16, given=7500, wanted=1, parts=6)
"""All that a group has to do are prompts of one step each, and more of them wait in the router than it takes at once.

Two or three parts make an answer, so a few steps have gone well when the next rank is killed.
"""
REHEARSED = {
    "graph": Kind("graph", clients=4, given=100, wanted=400, parts=10),
    "prefill": Kind("prefill", clients=4, given=500, wanted=1, parts=6),
}


@dataclass(frozen=True)
class Kill:
    """Seconds from the signal; how many other ranks are not what they were; requests that were being computed."""

    unready_s: float
    serving_s: float
    changed: int
    running: int


@dataclass
class Ground:
    """A deployment that serves."""

    bench: Bench
    layout: str
    deployment: Deployment


@contextmanager
def ground(bench: Bench) -> Iterator[Ground]:
    """What the deployment said is kept in a directory with this job's name."""
    layout, tensor, stages, kv_bytes = LAYOUTS[bench.job]
    source = write_checkpoint(bench.config(), bench.scratch / "models" / "a", seed=ord("a"))
    with deployed(source, tensor, stages, DEVICE, kv_bytes=0 if bench.quick else kv_bytes) as deployment:
        begin = time.monotonic()
        try:
            print(f"first token after {asyncio.run(first_token(deployment)) - begin:.1f} s", flush=True)
            yield Ground(bench, layout, deployment)
        finally:
            keep_logs(deployment, bench.keep / bench.job)


def keep_logs(deployment: Deployment, directory: Path) -> None:
    """Copy what `bireme up`, router and workers have said so far, whole."""
    directory.mkdir(parents=True, exist_ok=True)
    for log in (deployment.log, *(deployment.run_dir / deployment.name / "logs").glob("*.log")):
        shutil.copyfile(log, directory / f"{'bireme-' if log == deployment.log else ''}{log.name}")


async def _kill_under(on: Ground, name: str, kind: Kind) -> None:
    """The median is told after each kill, so that a call that is cut off has it."""
    bench = on.bench
    (wanted,) = (case.times for case in bench.cases if case.name == name)
    ends_at = min(bench.ends_at, time.time() + wanted * TURN_S) if not bench.quick else bench.ends_at
    load = Streams(on.deployment.url, kind.clients, fixed(bench.vocabulary, 1, kind.given, kind.wanted)[0])
    turns = Turns(on, kind, load)
    try:
        while len(turns.kills) < wanted and (not turns.kills or time.time() + TURN_S <= ends_at):
            await turns.take()
    finally:
        print(f"{kind.name}: {len(turns.kills)} of {wanted} kills, {load.arrived} parts came", flush=True)
        turns.over.set()
        await load.stop()


class Turns:
    """One kill after the other under ``load``."""

    def __init__(self, on: Ground, kind: Kind, load: Streams) -> None:
        self._on = on
        self._kind = kind
        self._load = load
        self._dice = random.Random(kind.name)
        self.kills: list[Kill] = []
        self.over = threading.Event()
        """Nothing is waited for any more: this process was told to end."""

    async def take(self) -> None:
        """Wait until all is well, kill the next rank, and wait until the group serves again."""
        await asyncio.to_thread(self._await_spares)
        wait, before = self._wait(f"for {self._kind.parts} parts"), self._load.arrived
        while self._load.arrived < before + self._kind.parts:
            await asyncio.sleep(0.02)
            await asyncio.to_thread(wait.look)
        await asyncio.sleep(self._dice.uniform(0.2, 0.5))
        self.kills.append(await asyncio.to_thread(self._kill))
        print(self._kind.name, self.kills[-1], flush=True)
        self._tell()

    def _wait(self, what: str) -> Wait:
        text = f"{self._kind.name}, kill {len(self.kills) + 1}, waits {what}"
        return Wait(text, self._on.deployment, self._load, self.over)

    def _await_spares(self) -> None:
        """The last kill is over: the group serves, and each stage has a spare that has done its imports."""
        deployment, wait, before = self._on.deployment, self._wait("for spare ranks at rest"), None
        while (spares := _spares_at_rest(deployment)) is None or spares != before or not deployment.ready(0):
            wait.look()
            before = spares
            time.sleep(0.3)

    def _kill(self) -> Kill:
        deployment, wait = self._on.deployment, self._wait("until a request is computed")
        while not (running := deployment.state(0).running):
            wait.look()
            time.sleep(POLL_S)
        before = ranks(deployment)
        victim = sorted(before)[len(self.kills) % len(before)]
        begin = time.monotonic()
        os.kill(before[victim][0], signal.SIGKILL)
        unready = self._until(begin, ready=False)
        serving = self._until(begin, ready=True)
        after = ranks(deployment)
        changed = sum(after[place] != one for place, one in before.items() if place != victim)
        return Kill(unready, serving, changed, running)

    def _until(self, begin: float, *, ready: bool) -> float:
        wait = self._wait("until it is ready again" if ready else "until it is not ready")
        while self._on.deployment.ready(0) is not ready:
            wait.look()
            time.sleep(POLL_S)
        return time.monotonic() - begin

    def _tell(self) -> None:
        measured, kills, failed = self._on.bench.measured, self.kills, self._load.failed
        prefix = f"{self._on.layout}.{self._kind.name}"
        unready, serving = [one.unready_s for one in kills], [one.serving_s for one in kills]
        note = f"{len(kills)} kills, longest {max(unready):.2f} s, failed streams {len(failed)}"
        measured(f"{prefix}.unready", statistics.median(unready), note)
        measured(f"{prefix}.serving", statistics.median(serving), f"longest {max(serving):.2f} s")
        measured(f"{prefix}.changed", sum(one.changed for one in kills))
        measured(f"{prefix}.lost", len(failed), f"of {len(self._load.answers)}" + "".join(failed[:1]))


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


def _case(on: Ground, name: str, kind: Kind) -> None:
    asyncio.run(_kill_under(on, name, REHEARSED[kind.name] if on.bench.quick else kind))


CASES: Mapping[str, Callable[[Ground], None]] = {
    f"{layout}{kind.name[0]}": partial(_case, name=f"{layout}{kind.name[0]}", kind=kind)
    for layout in ("A13t", "A13p", "M6", "H6")
    for kind in (GRAPH, PREFILL)
}
