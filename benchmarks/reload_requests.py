"""A rolling restart and reloads A→B→A under 16 streams: no request fails, and each answer is of the weights it names.

Two groups of two stages serve at least `--requests` requests of all kinds, 16 at a time. Meanwhile, over and over: the
weights are changed to B and back to A (modes in turn), and each stage of each group gets a SIGTERM, one after the
other, as a rolling restart or a node drain does it. Every answer is judged by the oracle with the weights that it
names, each part of a stream that `restart` carried over by its own. The last line is JSON: `failed` and `different`
must be 0.

  python benchmarks/reload_requests.py                    1,000 requests of a tiny random model, some minutes
  python benchmarks/reload_requests.py --requests 60      a minute
"""

import argparse
import asyncio
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from benchmarks.reload_pause import perturbed
from bireme_operator.local.wish import SIGNAL, Wish, write_wish
from bireme_worker.text.tokenizer import TextModel
from tests.faults import kinds, leaks
from tests.faults.tiny import MODEL, deployment_file, make_tiny
from tests.support.deployment import Deployment, running
from tests.support.oracle import Oracle
from tests.support.ports import free_port

GROUPS, STREAMS = 2, 16
TOKENS = (16, 64)
LIMIT_S = 180.0
RESTART = "restart of a stage"


@dataclass
class Run:
    """What was asked and done. ``left``: requests that must still be asked; ``over``: nothing more will be done.

    ``restarts``: stages that are restarted in a round, None for all.
    """

    left: int
    restarts: int | None = None
    over: bool = False
    asks: list[kinds.Ask] = field(default_factory=list)
    done: Counter[str] = field(default_factory=Counter)
    different: list[str] = field(default_factory=list)
    ties: int = 0
    revisions: Counter[str] = field(default_factory=Counter)


def main() -> int:
    """Run, judge, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    run = Run(options.requests)
    serve(run, random.Random(options.seed))
    return _report(run)


def serve(run: Run, dice: random.Random) -> None:
    """Ask, reload, restart and judge."""
    with tempfile.TemporaryDirectory(prefix="bireme-") as path:
        models = Path(path) / "models"
        make_tiny(models / "1")
        perturbed(models / "1", models / "b")
        (models / "a").symlink_to(models / "1")
        file = deployment_file(Path(path), tensor=1, pipeline=2, replicas=GROUPS, directory="1")
        with running(file, Path(path), free_port(), {"/models": models}) as deployment:
            deployment.wait_serving(GROUPS)
            print(f"{GROUPS} groups serve", flush=True)
            asyncio.run(_all(deployment, dice, run))
            run.different += [f"not at rest: {text}" for text in leaks.busy_gauges(deployment, GROUPS)]
        judge(run, {"1": models / "1", "a": models / "1", "b": models / "b"})


async def _all(deployment: Deployment, dice: random.Random, run: Run) -> None:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        clients = [asyncio.create_task(_ask(session, deployment, dice, run)) for _ in range(STREAMS)]
        operating = asyncio.create_task(_operate(deployment, run))
        done, _ = await asyncio.wait([operating, *clients], return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()
        await asyncio.gather(operating, *clients)


async def _ask(session: aiohttp.ClientSession, deployment: Deployment, dice: random.Random, run: Run) -> None:
    while run.left > 0 or not run.over:
        run.left -= 1
        ask = kinds.make(dice.choice(kinds.STREAMED), MODEL, dice, dice.randint(*TOKENS))
        run.asks.append(ask)
        await kinds.run(session, deployment.url, ask)


async def _operate(deployment: Deployment, run: Run) -> None:
    """Reloads and restarts in turn, until all is asked; A is served at the end, and each was done at least once."""
    turn = 0
    while run.left > 0 or not run.done[RESTART]:
        mode = ("finish", "restart")[turn % 2]
        await _reload(deployment, "b", mode, run)
        await _reload(deployment, "a", mode, run)
        await _rolling_restart(deployment, run)
        turn += 1
    run.over = True


async def _reload(deployment: Deployment, revision: str, mode: str, run: Run) -> None:
    write_wish(deployment.run_dir / deployment.name / "wishes", Wish(f"/models/{revision}", revision, mode))
    deployment.process.send_signal(SIGNAL)
    await _until(deployment, lambda: _all_serve(deployment, revision))
    _note(run, f"reload to {revision}, mode {mode}")


async def _rolling_restart(deployment: Deployment, run: Run) -> None:
    pods = [(pod["name"], pod["pid"]) for pod in deployment.status()["local"]["pods"]]
    for name, pid in pods[: run.restarts]:
        os.kill(pid, signal.SIGTERM)
        await _until(deployment, lambda name=name: _gone(deployment, name))  # type: ignore[misc]
        await _until(deployment, lambda: _all_serve(deployment, "a"))
        _note(run, RESTART)


def _note(run: Run, what: str) -> None:
    run.done[what] += 1
    print(f"{what}: {len(run.asks)} requests so far", flush=True)


def _gone(deployment: Deployment, name: str) -> bool:
    return not any(pod["name"] == name for pod in deployment.status()["local"]["pods"])


def _all_serve(deployment: Deployment, revision: str) -> bool:
    groups = deployment.groups()
    serving = [g["index"] for g in groups if g["state"] == "Serving" and deployment.ready(g["index"])]
    return len(serving) == GROUPS and all(deployment.state(i).model_revision == revision for i in serving)


async def _until(deployment: Deployment, condition: Callable[[], bool]) -> None:
    end = time.monotonic() + LIMIT_S
    while not await asyncio.to_thread(condition):
        assert time.monotonic() < end, deployment.tail()
        await asyncio.sleep(0.05)


def judge(run: Run, checkpoints: dict[str, Path]) -> None:
    """Each answer by the weights that its events name."""
    from transformers import AutoModelForCausalLM

    text = TextModel.load(next(iter(checkpoints.values())))
    oracles: dict[str, Oracle] = {}
    for revision, path in checkpoints.items():
        reference: Any = AutoModelForCausalLM.from_pretrained(path.resolve(), dtype="float32")
        oracles[revision] = Oracle(reference)
    for ask in run.asks:
        if not ask.error:
            run.revisions.update({name for choice in ask.choices.values() for name in choice.named})
            run.different += kinds.judge_by_revision(ask, oracles, text)
    for oracle in oracles.values():
        run.different += [f"wrong id: {miss}" for miss in oracle.verdict.wrong]
        run.ties += len(oracle.verdict.ties)


def _report(run: Run) -> int:
    failed = [f"{ask.label}: {ask.error}" for ask in run.asks if ask.error]
    for line in (*failed, *run.different):
        print(line)
    for what, count in sorted(run.done.items()):
        print(f"{what:32} {count}")
    last = {
        "requests": len(run.asks),
        "failed": len(failed),
        "different": len(run.different),
        "ties": run.ties,
        "restarts": run.done[RESTART],
        "reloads": sum(count for what, count in run.done.items() if what.startswith("reload")),
        "revisions": dict(sorted(run.revisions.items())),
    }
    print(json.dumps(last), flush=True)
    return 1 if failed or run.different else 0


if __name__ == "__main__":
    sys.exit(main())
