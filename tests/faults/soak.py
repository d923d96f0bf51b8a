"""`python -m tests.faults.soak --minutes M --seed S`: random faults under load, every answer judged by the oracle.

Two groups of a tiny random model serve all kinds of requests while processes are killed and stopped and connections are
reset; where the machine allows it (root, iproute2), in a network of their own whose packets are delayed and dropped at
times, and on a small disk that is full at times. The last line is JSON: requests lost, different and leaked (each must
be 0), faults, requests, ties. The same seed makes the same requests and picks the same faults; when they hit depends on
the machine.
"""

import argparse
import asyncio
import contextlib
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import httpx

from bireme_worker.text.tokenizer import TextModel
from tests.faults import inject, kinds, leaks, network
from tests.faults.chaos import Chaos
from tests.faults.tiny import MODEL, SHAPES, deployment_file, make_tiny
from tests.support.deployment import RECOVER_LIMIT_S, Deployment, running
from tests.support.oracle import Oracle
from tests.support.ports import free_port

GROUPS = 2
CLIENTS = 6
MAX_TOKENS = 48
PAUSE_S = (0.5, 5.0)
DISK_KB = 65_536
"""Room for the logs of a long run; a full disk is filled on purpose."""
THINK_S = 1.5
"""Longest pause of a client between two requests: faults shall hit whole answers, not a saturated machine only."""
QUIET_S = 120.0
"""Requests still under way when the faults end have this long: there is nothing left that could delay them."""


@dataclass
class Tally:
    """What is counted, and everything that is wrong in words."""

    asks: list[kinds.Ask] = field(default_factory=list)
    faults: list[tuple[float, str]] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    different: list[str] = field(default_factory=list)
    leaked: list[str] = field(default_factory=list)
    ties: int = 0
    tokens: int = 0

    def summary(self) -> dict[str, Any]:
        """The last line."""
        return {
            "lost": len(self.lost),
            "different": len(self.different),
            "leaked": len(self.leaked),
            "faults": len(self.faults),
            "requests": len(self.asks),
            "ties": self.ties,
            "tokens": self.tokens,
            "kinds": dict(sorted(Counter(ask.kind for ask in self.asks).items())),
        }

    def print(self) -> None:
        """All faults, then what is wrong, then the summary."""
        for at, text in self.faults:
            print(f"{at:8.1f} s  {text}")
        for name in ("lost", "different", "leaked"):
            for text in getattr(self, name):
                print(f"{name}: {text}")
        print(json.dumps(self.summary()), flush=True)


def main() -> int:
    """Run, print, and return 0 only if nothing is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0, help="how long faults go on (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of requests and faults (%(default)s)")
    parser.add_argument("--keep-logs", type=Path, metavar="DIR", help="copy all logs there at the end")
    options = parser.parse_args()
    why_not = network.missing()
    print(
        f"no bad network and no full disk: {why_not}" if why_not else "in a network and on a disk of its own",
        flush=True,
    )
    if not why_not:
        network.leave_for_own_network()
    dice = random.Random(options.seed)
    tally = Tally()
    with tempfile.TemporaryDirectory(prefix="bireme-") as path, _disk(Path(path) / "run", own=not why_not) as run_dir:
        checkpoint = make_tiny(Path(path) / MODEL)
        tensor, pipeline = SHAPES[options.seed % len(SHAPES)]
        print(f"seed {options.seed}: {GROUPS} groups, tensor {tensor} × pipeline {pipeline}", flush=True)
        file = deployment_file(Path(path), tensor=tensor, pipeline=pipeline, replicas=GROUPS)
        try:
            with running(file, run_dir, free_port(), {"/models": checkpoint.parent}) as deployment:
                deployment.wait_serving(GROUPS)
                chaos = Chaos(deployment, random.Random(dice.random()), not why_not, None if why_not else run_dir)
                asyncio.run(_soak(deployment, dice, options.minutes * 60, tally, chaos))
                _settle(deployment, tally)
                _keep_logs(deployment, options.keep_logs)
        except AssertionError as error:
            tally.leaked.append(str(error))
        tally.leaked += [f"file {name}" for name in leaks.left_files(deployment)]
        _judge(tally, checkpoint)
    tally.print()
    return 1 if tally.lost or tally.different or tally.leaked else 0


@contextlib.contextmanager
def _disk(path: Path, *, own: bool) -> Iterator[Path]:
    """The run directory."""
    if own:
        with inject.small_disk(path, DISK_KB):
            yield path
    else:
        path.mkdir()
        yield path


async def _soak(deployment: Deployment, dice: random.Random, seconds: float, tally: Tally, chaos: Chaos) -> None:
    began = time.monotonic()
    clients = [random.Random(dice.random()) for _ in range(CLIENTS)]
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        load = [asyncio.create_task(_ask(session, deployment, own, began + seconds, tally)) for own in clients]
        while time.monotonic() < began + seconds:
            await asyncio.sleep(chaos.dice.uniform(*PAUSE_S))
            await asyncio.to_thread(chaos.strike)
        _, late = await asyncio.wait(load, timeout=QUIET_S)
        for task in late:
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*load)
    tally.lost += [f"a client still waits {QUIET_S:g} s after the last fault"] * len(late)
    tally.faults = [(at - began, text) for at, text in chaos.done]


async def _ask(
    session: aiohttp.ClientSession, deployment: Deployment, dice: random.Random, end: float, tally: Tally
) -> None:
    while time.monotonic() < end:
        ask = kinds.make(dice.choice(kinds.KINDS), MODEL, dice, dice.randint(8, MAX_TOKENS))
        tally.asks.append(ask)
        began = time.monotonic()
        await kinds.run(session, deployment.url, ask)
        if ask.error:
            tally.lost.append(f"{ask.label}: after {time.monotonic() - began:.1f} s: {ask.error}")
        await asyncio.sleep(dice.uniform(0.0, THINK_S))


async def _compare(deployment: Deployment, tally: Tally) -> list[str]:
    async with aiohttp.ClientSession() as session:
        return await kinds.compare_again(session, deployment.url, tally.asks)


def _settle(deployment: Deployment, tally: Tally) -> None:
    try:
        deployment.wait_serving(GROUPS, RECOVER_LIMIT_S)
        tally.different += asyncio.run(_compare(deployment, tally))
        tally.leaked += leaks.busy_gauges(deployment, GROUPS)
    except (AssertionError, httpx.TransportError) as error:
        tally.lost.append(f"not everything serves again: {str(error)[:2000]}")


def _keep_logs(deployment: Deployment, folder: Path | None) -> None:
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        for log in (deployment.log, *(deployment.run_dir / deployment.name / "logs").glob("*.log")):
            (folder / log.name).write_bytes(log.read_bytes())


def _judge(tally: Tally, checkpoint: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)  # beside whatever else this machine does
    oracle = Oracle(AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32))
    text = TextModel.load(checkpoint)
    for ask in tally.asks:
        if not ask.error and ask.choices:
            tally.different += kinds.judge(ask, oracle, text)
    verdict = oracle.verdict
    tally.different += [f"wrong id: {miss}" for miss in verdict.wrong]
    tally.ties, tally.tokens = len(verdict.ties), verdict.tokens


if __name__ == "__main__":
    sys.exit(main())
