"""How fast a group notices a loss and serves again, and what that costs its clients.

SmolLM2 in one group of two stages serves requests of every kind while ranks are killed, ranks are stopped and the
leader is killed, at least 30 times each (`--quick`: 3); then its weights are reloaded under eight streams. A tiny model
with a long context in tensor 3 × pipeline 2 gets prefills of 32,000 tokens beside a busy process, and nothing may be
called dead. Every answer is judged by the oracle. The last line is JSON.

  python benchmarks/recovery.py --quick        under four minutes on two cores
"""

import argparse
import asyncio
import contextlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from benchmarks.reload_pause import Load, perturbed, reload
from bireme_worker.checkpoints.packaged import ensure_smollm2
from bireme_worker.text.tokenizer import TextModel
from tests.faults import formed, inject, kinds
from tests.faults.parts import Part, one, parts
from tests.faults.tiny import cache_dir, deployment_file, make_tiny
from tests.support.deployment import Deployment, running
from tests.support.oracle import Oracle
from tests.support.ports import free_port

MODEL = "smollm2-135m-instruct"
POLL_S = 0.005
GIVE_UP_S = 120.0
PREFILL_IDS, PREFILLS = 32_000, 2
LONG = {"hidden_size": 96, "num_attention_heads": 6, "num_key_value_heads": 3, "max_position_embeddings": 32_768}
"""A tiny model that three ranks can share; SmolLM2's context ends at 8,192."""
RELOAD_STREAMS = 8


@dataclass
class Results:
    """Seconds by measurement, every request, and what the watch under prefill saw."""

    seconds: dict[str, list[float]] = field(default_factory=dict)
    asks: list[kinds.Ask] = field(default_factory=list)
    interrupted: Counter[str] = field(default_factory=Counter)
    false_alarms: int = 0
    prefills: int = 0
    different: list[str] = field(default_factory=list)
    ties: Counter[str] = field(default_factory=Counter)

    def add(self, name: str, value: float) -> None:
        """One measurement."""
        self.seconds.setdefault(name, []).append(value)


def main() -> int:
    """Run everything and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="3 faults of each kind, a short watch for false alarms")
    parser.add_argument("--faults", type=int, default=30, help="faults of each kind (%(default)s)")
    parser.add_argument("--prefill-minutes", type=float, default=10.0, help="watch for false alarms (%(default)s)")
    options = parser.parse_args()
    faults, prefill_s, reloads = (3, 20.0, 2) if options.quick else (options.faults, options.prefill_minutes * 60, 8)
    results = Results()
    with tempfile.TemporaryDirectory(prefix="bireme-") as path:
        models = Path(path)
        _link(ensure_smollm2(cache_dir()), models / "a")
        perturbed(models / "a", models / "b")
        make_tiny(models / "long", **LONG)
        with _served(models / "a", tensor=1, pipeline=2, length=2048) as deployment:
            asyncio.run(_all_faults(deployment, faults, results))
            asyncio.run(_compare(deployment, results))
            asyncio.run(_reloads(deployment, reloads, results))
        with _served(models / "long", tensor=3, pipeline=2, length=32_768) as deployment, _busy_process():
            results.false_alarms = asyncio.run(_false_alarms(deployment, prefill_s, results))
        _judge(models / "a", results)
    return _report(results)


def _link(source: Path, target: Path) -> None:
    target.mkdir()
    for file in source.iterdir():
        (target / file.name).symlink_to(file)
    formed.teach_tools(target)


@contextlib.contextmanager
def _served(checkpoint: Path, *, tensor: int, pipeline: int, length: int) -> Iterator[Deployment]:
    with tempfile.TemporaryDirectory(prefix="bireme-") as path:
        file = deployment_file(
            Path(path), tensor=tensor, pipeline=pipeline, model=MODEL, directory=checkpoint.name, length=length
        )
        with running(file, Path(path), free_port(), {"/models": checkpoint.parent}) as deployment:
            deployment.wait_serving(1)
            print(f"tensor {tensor} × pipeline {pipeline} serves {checkpoint.name}", flush=True)
            yield deployment


async def _compare(deployment: Deployment, results: Results) -> None:
    """Answers of a form are judged by the same request once more, undisturbed."""
    await asyncio.to_thread(deployment.wait_serving, 1)
    async with aiohttp.ClientSession() as session:
        results.different += await kinds.compare_again(session, deployment.url, results.asks)


async def _reloads(deployment: Deployment, count: int, results: Results) -> None:
    """To other weights and back, in both modes; the pause is the longest gap without any token on any stream."""
    load = Load(deployment.url, RELOAD_STREAMS)
    try:
        for number in range(count):
            await asyncio.sleep(1)
            revision, mode = (("b", "finish"), ("a", "restart"))[number % 2]
            pause = (await reload(deployment, revision, mode, load))["pause_s"]
            results.add("reload_pause_s", pause)
            print(f"reload, mode {mode}: longest gap {pause:.2f} s", flush=True)
    finally:
        await load.stop()


async def _all_faults(deployment: Deployment, count: int, results: Results) -> None:
    dice = random.Random(11)
    for number in range(count):
        for fault in (_kill_rank, _stop_rank, _kill_leader):
            await asyncio.to_thread(_whole, deployment)
            async with _load(deployment, dice, results):
                await asyncio.to_thread(fault, deployment, number, results)
        print(f"{number + 1} of {count}: " + json.dumps({k: round(v[-1], 2) for k, v in results.seconds.items()}))
        sys.stdout.flush()


def _whole(deployment: Deployment) -> None:
    """Wait until the last fault is over altogether: every stage has its spare rank, and that has done its imports."""
    end, before = time.monotonic() + GIVE_UP_S, None
    while (spares := _spares_at_rest(deployment)) is None or spares != before:
        assert time.monotonic() < end, f"no spare ranks: {deployment.tail()}"
        before = spares
        time.sleep(0.5)


def _spares_at_rest(deployment: Deployment) -> list[tuple[str, ...]] | None:
    """Process and CPU time of each stage's spare; None while one is missing or runs."""
    found = [part for part in parts(deployment) if part.role == "spare"]
    fields = [Path(f"/proc/{part.pid}/stat").read_text().rpartition(")")[2].split() for part in found]
    stages = {part.stage for part in parts(deployment) if part.role == "supervisor"}
    if {part.stage for part in found} != stages or any(field[0] != "S" for field in fields):
        return None
    return [(str(part.pid), field[11], field[12]) for part, field in zip(found, fields, strict=True)]


@contextlib.asynccontextmanager
async def _load(deployment: Deployment, dice: random.Random, results: Results) -> Any:
    """One request of each kind; the block runs in the middle of their answers."""
    asks = [kinds.make(kind, MODEL, dice, 64) for kind in kinds.KINDS]
    results.asks += asks
    async with aiohttp.ClientSession() as session:
        tasks = [asyncio.create_task(kinds.run(session, deployment.url, ask)) for ask in asks]
        while sum(ask.delivered for ask in asks) < 60 and not all(task.done() for task in tasks):
            await asyncio.sleep(0.01)
        results.interrupted.update(ask.kind for ask, task in zip(asks, tasks, strict=True) if not task.done())
        yield
        await asyncio.gather(*tasks)


def _kill_rank(deployment: Deployment, number: int, results: Results) -> None:
    victim = one(parts(deployment), "rank", stage=number % 2)
    began = time.monotonic()
    inject.kill(victim)
    results.add("kill_to_unready_s", _until(deployment, began, ready=False))
    results.add("rank_lost_to_serving_s", _until(deployment, began, ready=True))


def _stop_rank(deployment: Deployment, number: int, results: Results) -> None:
    victim = one(parts(deployment), "rank", stage=number % 2)
    began = time.monotonic()
    with inject.stopped(victim):
        results.add("stop_to_unready_s", _until(deployment, began, ready=False))
    _until(deployment, began, ready=True)


def _kill_leader(deployment: Deployment, _number: int, results: Results) -> None:
    victim: Part = one(parts(deployment), "supervisor", stage=0)
    began = time.monotonic()
    inject.kill(victim)
    results.add("leader_lost_to_unready_s", _until(deployment, began, ready=False))
    results.add("leader_lost_to_serving_s", _until(deployment, began, ready=True))


def _until(deployment: Deployment, began: float, *, ready: bool) -> float:
    while deployment.ready(0) is not ready:
        assert time.monotonic() < began + GIVE_UP_S, f"not {'ready' if ready else 'unready'}: {deployment.tail()}"
        time.sleep(POLL_S)
    return time.monotonic() - began


@contextlib.contextmanager
def _busy_process() -> Iterator[None]:
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()


async def _false_alarms(deployment: Deployment, seconds: float, results: Results) -> int:
    """Moments of unreadiness and epochs that ended while long prefills ran."""
    epoch, alarms, end = deployment.state(0).epoch, 0, time.monotonic() + seconds
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as session:
        feeding = [asyncio.create_task(_feed(session, deployment, number, results)) for number in range(PREFILLS)]
        while time.monotonic() < end:
            assert not any(task.done() for task in feeding), f"a prefill ended badly: {feeding}"
            alarms += not await asyncio.to_thread(deployment.ready, 0)
            await asyncio.sleep(0.1)
        for task in feeding:
            task.cancel()
        await asyncio.gather(*feeding, return_exceptions=True)
    later = (await asyncio.to_thread(deployment.state, 0)).epoch
    return alarms + later - epoch


async def _feed(session: aiohttp.ClientSession, deployment: Deployment, number: int, results: Results) -> None:
    dice = random.Random(number)
    while True:
        prompt = [dice.randrange(1000, 40000) for _ in range(PREFILL_IDS)]
        body = {"model": MODEL, "prompt": prompt, "max_tokens": 1}
        async with session.post(f"{deployment.url}/v1/completions", json=body) as response:
            assert response.status == 200, await response.text()
        results.prefills += 1


def _judge(checkpoint: Path, results: Results) -> None:
    from transformers import AutoModelForCausalLM

    oracle, text = Oracle(AutoModelForCausalLM.from_pretrained(checkpoint, dtype="float32")), TextModel.load(checkpoint)
    for ask in results.asks:
        if not ask.error:
            results.different += kinds.judge(ask, oracle, text)
    results.different += [f"wrong id: {miss}" for miss in oracle.verdict.wrong]
    results.ties.update(miss.request.split(":")[0] for miss in oracle.verdict.ties)


def _report(results: Results) -> int:
    for name, values in results.seconds.items():
        median, high = statistics.median(values), max(values)
        print(f"{name:26} n {len(values):3}  median {median:6.2f}  p95 {_p95(values):6.2f}  max {high:6.2f}")
    for kind in kinds.KINDS:
        asked = sum(ask.kind == kind for ask in results.asks)
        print(f"{kind:10} asked {asked:4}  interrupted {results.interrupted[kind]:4}  ties {results.ties[kind]}")
    print(f"{results.prefills} prefills of {PREFILL_IDS} tokens ended while nothing was to be called dead")
    lost = [f"{ask.label}: {ask.error}" for ask in results.asks if ask.error]
    for line in (*lost, *results.different):
        print(line)
    seconds = results.seconds
    last = {
        "kill_to_unready_s_max": round(max(seconds["kill_to_unready_s"]), 3),
        "stop_to_unready_s_max": round(max(seconds["stop_to_unready_s"]), 3),
        "false_alarms": results.false_alarms,
        "rank_lost_to_serving_s_p95": round(_p95(seconds["rank_lost_to_serving_s"]), 3),
        "leader_lost_to_serving_s_p95": round(_p95(seconds["leader_lost_to_serving_s"]), 3),
        "reload_pause_s_max": round(max(seconds["reload_pause_s"]), 3),
        "lost": len(lost),
        "different": len(results.different),
    }
    print(json.dumps(last), flush=True)
    return 1 if lost or results.different or results.false_alarms else 0


def _p95(values: Sequence[float]) -> float:
    """Nearest rank."""
    return sorted(values)[max(-(-95 * len(values) // 100) - 1, 0)]


if __name__ == "__main__":
    sys.exit(main())
