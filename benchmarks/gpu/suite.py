"""Many cases of one to four GPUs, beside their peers, in one call of a machine that is lent for minutes.

Each job is a process of its own; every figure is shown and kept as it comes; a case that fails, or a job that does not
end, costs the others nothing. What does not fit into the time is left out by name, the least valuable first. Last come
one JSON line, rows for docs/performance.md and a table; the exit code is 1 when a case failed.

    python -m benchmarks.gpu.suite --cases A1,A2,A3 --limit-s 560 --peers DIRECTORY --logs DIRECTORY
    python -m benchmarks.gpu.suite --cases A11,A13 --rehearse      does it run? on this machine's CPU, with a tiny model
"""

import argparse
import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from benchmarks.gpu.cases import Case, Task, able, chosen, fitting, lanes_of, length, needs, tasks_of
from benchmarks.gpu.external import Peer, read_peers
from benchmarks.gpu.job import MARK
from benchmarks.gpu.lines import LINES, Figures, performance_rows, table

GRACE_S = 30.0
"""A job that is told to end has this long to stop what it started."""
PATIENCE_S = 60.0
"""Beyond twice its plan nothing is waited for: it hangs."""
SPARE_S = 8.0
"""Of the limit, for the end."""
ROOT = Path(__file__).parent.parent.parent


@dataclass
class Call:
    """One run of the driver."""

    options: argparse.Namespace
    scratch: Path
    begin: float
    figures: Figures
    peers: dict[str, Peer]

    @property
    def left(self) -> float:
        """Seconds until the limit."""
        return float(self.options.limit_s) - SPARE_S - (time.time() - self.begin)

    def say(self, text: str) -> None:
        """Show a line with the time since the start."""
        print(f"[{time.time() - self.begin:5.0f} s] {text}", flush=True)


def main() -> int:
    """Plan, run, report."""
    options = _options()
    if options.rehearse:
        options.shape, options.device, options.kills = "tiny", "cpu", 1
    count = 0 if options.device == "cpu" else options.gpus if options.gpus is not None else _gpus()
    asked = chosen(options.cases, options.kills)
    begin, figures = time.time(), Figures()
    if not count:
        options.device = "cpu"
    cases = able(asked, count)
    figures.dropped |= {one.name: f"needs {needs(one)}, here are {count}" for one in asked if one not in cases}
    lines = {case.line for case in cases}
    peers = read_peers(options.peers, lines) if options.peers else []
    kept: list[Case] = cases
    left: list[Case] = []
    if options.shape != "tiny":
        kept, left = fitting(cases, [peer.task for peer in peers], max(count, 1), options.limit_s - SPARE_S)
    figures.dropped |= {case.name: f"does not fit into {options.limit_s:.0f} s" for case in left}
    options.logs.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="bireme-") as scratch:
        call = Call(options, Path(scratch), begin, figures, {peer.task.name: peer for peer in peers})
        tasks = [*tasks_of(kept), *(peer.task for peer in peers)]
        call.say(f"{' '.join(case.text for case in kept)}: about {length(tasks, max(count, 1)):.0f} s on {count} GPUs")
        asyncio.run(_all(call, tasks, count))
    return _report(call)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default="all", help="cases or lines, A13tp:8 for eight times, or all (%(default)s)")
    parser.add_argument("--limit-s", type=float, default=560.0, help="the call ends before this (%(default)s)")
    parser.add_argument("--peers", type=Path, help="directory with peers.json; without it none runs")
    parser.add_argument("--logs", type=Path, default=Path("build/gpu"), help="where logs go (%(default)s)")
    parser.add_argument("--shape", default="", help="a shape for all cases; tiny: only prove that they run")
    parser.add_argument("--device", default="auto", help="auto or cpu")
    parser.add_argument("--rehearse", action="store_true", help="all that runs on a CPU, tiny, one kill of each kind")
    parser.add_argument("--gpus", type=int, help="use so many (all)")
    parser.add_argument("--kills", type=int, default=0, help="of each kind in A13 and M6 (10, or as the case says)")
    return parser.parse_args()


def _gpus() -> int:
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False).stdout
    except FileNotFoundError:
        return 0
    return listed.count("GPU ")


async def _all(call: Call, tasks: Sequence[Task], count: int) -> None:
    lanes, together = lanes_of(tasks, count)
    if call.options.device == "cpu":
        await _lane(call, [*(task for lane in lanes for task in lane), *together], "")
        return
    await asyncio.gather(*(_lane(call, lane, str(gpu)) for gpu, lane in enumerate(lanes)))
    for task in together:
        await _lane(call, [task], ",".join(map(str, range(task.gpus))))


async def _lane(call: Call, tasks: Sequence[Task], gpus: str) -> None:
    for task in tasks:
        # A job's later cases look at the clock themselves; a peer is worth nothing when it is cut off.
        needed = task.job.seconds if task.job is not None else 0.8 * task.seconds
        if call.left < needed and not call.options.shape:
            for case in task.cases:
                call.figures.dropped[case.name] = f"only {call.left:.0f} s were left when its turn came"
            call.say(f"{task.name} left out")
            continue
        environment = {"CUDA_VISIBLE_DEVICES": gpus, "PYTHONUNBUFFERED": "1"}
        begin = time.time()
        if task.job is not None:
            await _run_job(call, task, environment)
        else:
            await _run_peer(call, call.peers[task.name], environment)
        call.say(f"{task.name} took {time.time() - begin:.0f} s (planned {task.seconds:.0f})")


async def _run_job(call: Call, task: Task, environment: dict[str, str]) -> None:
    options = call.options
    command = [sys.executable, "-m", "benchmarks.gpu.job", "--job", task.name]
    command += ["--cases", ",".join(case.text for case in task.cases), "--scratch", str(call.scratch)]
    command += ["--shape", options.shape, "--device", options.device]
    command += ["--ends-at", str(time.time() + call.left), "--keep", str(options.logs.absolute())]
    path = [str(ROOT), *(str(ROOT / part) for part in ("operator", "router", "worker"))]
    environment["PYTHONPATH"] = os.pathsep.join([*path, *filter(None, [os.environ.get("PYTHONPATH")])])
    done: set[str] = set()
    code = await _run(call, task, command, ROOT, environment, done)
    if code:
        for case in task.cases:
            if case.name not in done | call.figures.failed.keys():
                call.figures.failed[case.name] = f"its job ended with {code}; the log is {task.name}.log"


async def _run_peer(call: Call, peer: Peer, environment: dict[str, str]) -> None:
    environment = {**peer.environment, **environment}
    code = await _run(call, peer.task, peer.command, Path(peer.directory), environment, set())
    output = _log(call, peer.task.name).read_text(errors="replace")
    found = peer.figures(output)
    call.figures.peers |= found
    call.say(f"{peer.task.name}: {found}" + (f", exit code {code}" if code else ""))
    for key in peer.values.keys() - found.keys():
        call.say(f"{peer.task.name} told nothing of {key}; its log ends with: {output[-300:]}")


async def _run(
    call: Call, task: Task, command: Sequence[str], directory: Path, environment: dict[str, str], done: set[str]
) -> int:
    """Run to the end or the limit, whichever is first; returns the exit code."""
    name, limit_s = task.name, max(min(call.left, 2 * task.seconds + PATIENCE_S), 5.0)
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=directory,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        limit=1 << 24,
    )
    reading = asyncio.create_task(_read(call, name, process, done))
    try:
        await asyncio.wait_for(process.wait(), limit_s)
    except TimeoutError:
        call.say(f"{name} is ended after {limit_s:.0f} s")
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), GRACE_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # what it left in its own session
    code = await process.wait()
    with contextlib.suppress(TimeoutError):  # a grandchild may hold the pipe
        await asyncio.wait_for(reading, 5)
    return code


async def _read(call: Call, name: str, process: asyncio.subprocess.Process, done: set[str]) -> None:
    assert process.stdout is not None
    with _log(call, name).open("wb") as log:
        async for line in process.stdout:
            log.write(line)
            log.flush()
            text = line.decode(errors="replace")
            if text.startswith(MARK + "{") and not name.startswith("peer "):
                _hear(call, name, json.loads(text.removeprefix(MARK)), done)


def _hear(call: Call, job: str, words: dict[str, object], done: set[str]) -> None:
    figures = call.figures
    match words:
        case {"key": str(key), "value": int() | float() as value, "note": str(note)}:
            figures.ours[key] = float(value)
            if note:
                figures.notes[key] = note
            call.say(f"{key} = {value}" + (f"  ({note})" if note else ""))
        case {"failed": str(name), "text": str(text)}:
            figures.failed[name] = text
            call.say(f"{name} FAILED: {text}")
        case {"dropped": str(name), "text": str(text)}:
            figures.dropped[name] = text
        case {"case": str(name), "seconds": int() | float() as seconds}:
            done.add(name)
            call.say(f"{name} ended after {seconds} s")
        case _:
            call.say(f"{job}: {words}")
    with (call.options.logs / "results.jsonl").open("a") as file:
        file.write(json.dumps({"at": round(time.time() - call.begin, 1), **words}) + "\n")


def _log(call: Call, name: str) -> Path:
    return Path(call.options.logs) / f"{name.replace(' ', '-')}.log"


def _report(call: Call) -> int:
    figures = call.figures
    machine = _machine(call.options.device)
    if call.options.shape:
        machine += f", in place of each shape {call.options.shape}"
    last = {"machine": machine, "seconds": round(time.time() - call.begin)}
    last |= {"figures": figures.ours, "peers": figures.peers, "met": _met(figures)}
    last |= {"failed": figures.failed, "left_out": figures.dropped}
    rows, shown = performance_rows(figures, machine), table(figures)
    (call.options.logs / "rows.md").write_text(rows + "\n")
    (call.options.logs / "table.txt").write_text(shown + "\n")
    print(json.dumps(last))
    print(rows)
    print(shown, flush=True)
    return 1 if figures.failed else 0


def _met(figures: Figures) -> dict[str, str]:
    return {line.key: figures.verdict(line) for line in LINES if line.key in figures.ours}


def _machine(device: str) -> str:
    card = f"CPU, {os.cpu_count()} cores"
    if device != "cpu":
        asked = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
        names = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip().splitlines()
        card = f"{len(names)} × {names[0].removeprefix('NVIDIA ')}" if names else "no GPU"
    return ", ".join([card, *(f"{name} {_version(name)}" for name in ("torch", "triton"))])


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "none"


if __name__ == "__main__":
    sys.exit(main())
