"""How the operator fares with many groups: 500 groups of two pods on 100 KWOK nodes, and a bare client beside it.

`python benchmarks/operator_scale.py` builds a control plane on this machine and runs, one after the other:

- a bare client that makes as many pods with 32 requests at once and deletes them: what the ground itself can do;
- run A: `engine: Custom`, the Gates provider, disruption budgets and tokens on; from nothing to all groups, to twice
  as many (one serving group loses a pod meanwhile), back to half, half a minute of rest, to zero;
- run B: our own engine, each leader heard on its `/watch`; from nothing to all groups, rest, to zero.

Rates are groups by the time from the wish to the last pod. After each phase stands who used how many cores; where
all cores are busy and most of them with the control plane, the ground is the limit, and the line says so. Last line:
JSON. `--quick` takes 50 groups. `--profile` writes the operator's CPU profile to a file.
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.operator_scale_ground import (
    Meter,
    Pods,
    Stages,
    bare,
    connection,
    ground,
    namespace_of,
    peak_rss_mb,
    written,
)
from bireme.names import Label, Metric
from tests.controlplane.cluster import ControlPlane
from tests.operator.process import OperatorProcess

_MERGE: Final = {"content-type": "application/merge-patch+json"}
_SETTLED_S: Final = 30.0


def wish(name: str, groups: int, *, custom: bool) -> dict[str, Any]:
    """The InferenceDeployment of a run."""
    worker = {"name": "worker", "image": "simulated", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    return {
        "apiVersion": "bireme.dev/v1alpha1",
        "kind": "InferenceDeployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": groups,
            "model": {"source": {"path": "/models/m"}, "revision": "one"},
            "parallelism": {"pipeline": 2},
            "engine": {"type": "Custom" if custom else "Bireme"},
            "template": {"spec": {"containers": [worker]}},
            "placement": {"scheduler": "Gates"},
            "rollout": {"drainTimeoutSeconds": 5},
            "router": {"replicas": 0},
        },
    }


class Run:
    """One operator with one deployment, and what is measured of it."""

    def __init__(
        self, plane: ControlPlane, session: aiohttp.ClientSession, pods: Pods, operator: OperatorProcess
    ) -> None:
        self.session = session
        self.pods = pods
        self.operator = operator
        self.namespace = pods.namespace
        pods.alive = self.alive
        known = {str(program): process.pid for program, process in plane.running.items()}
        self.meter = Meter({"operator": operator.process.pid, **known, "benchmark": os.getpid()})

    def alive(self) -> None:
        """Raise with its last words if the operator has ended."""
        if (code := self.operator.process.poll()) is not None:
            raise RuntimeError(f"the operator ended with {code}: {self.operator.log.read_text()[-500:]}")

    @property
    def url(self) -> str:
        """Where the deployment is."""
        return f"/apis/bireme.dev/v1alpha1/namespaces/{self.namespace}/inferencedeployments"

    async def create(self, groups: int, *, custom: bool) -> dict[str, float]:
        """From nothing to all groups."""
        self.meter.start()
        began = time.monotonic()
        async with self.session.post(self.url, json=wish("scale", groups, custom=custom)) as response:
            response.raise_for_status()
        return await self.grown(began, groups, new=groups)

    async def scale(self, groups: int) -> float:
        """Wish for another number of groups; when that was."""
        self.meter.start()
        began = time.monotonic()
        change = {"spec": {"replicas": groups}}
        async with self.session.patch(f"{self.url}/scale", json=change, headers=_MERGE) as response:
            response.raise_for_status()
        return began

    async def grown(self, began: float, groups: int, new: int) -> dict[str, float]:
        """Wait for all pods and for the status; the rates of the ``new`` groups."""
        await self.pods.until(2 * groups, 2 * groups)
        made = max(pod.made for pod in self.pods.living) - began
        ready = max(pod.ready for pod in self.pods.living) - began
        await self.told(groups)
        figures = {"created": new / made, "ready": new / ready, "told": new / (time.monotonic() - began)}
        self.say(f"{groups} groups", figures)
        return figures

    async def told(self, groups: int) -> None:
        """Wait until the status says that so many groups serve, and no more are there."""
        while True:
            async with self.session.get(f"{self.url}/scale") as response:
                status = (await response.json()).get("status") or {}
            if status.get("readyReplicas") == status.get("replicas") == groups:
                return
            await asyncio.sleep(0.2)

    async def shrunk(self, began: float, groups: int) -> float:
        """Wait until only so many groups are left; how long it took."""
        await self.pods.until(2 * groups, 2 * groups)
        took = time.monotonic() - began
        self.say(f"down to {groups} groups", {"seconds": took})
        return took

    async def lose_one(self) -> float:
        """Delete a pod of a serving group; how long until its successor was made."""
        victim = next(pod for pod in self.pods.at.values() if pod.metadata.labels.get(Label.GROUP_INDEX) == "0")
        path = f"/api/v1/namespaces/{self.namespace}/pods/{victim.metadata.name}"
        began, known = time.monotonic(), set(self.pods.by_uid)
        async with self.session.delete(path, json={"gracePeriodSeconds": 0}) as response:
            response.raise_for_status()
        while True:
            new = [pod for uid, pod in self.pods.by_uid.items() if uid not in known and pod.group == "0"]
            if new:
                return new[0].made - began
            await asyncio.sleep(0.01)

    async def rest(self) -> float:
        """The operator's cores while nothing happens."""
        self.meter.start()
        await asyncio.sleep(_SETTLED_S)
        cores = self.meter.read()["operator"]
        self.say("at rest", {"operator_cores": cores})
        return cores

    def say(self, what: str, figures: dict[str, float]) -> None:
        """Print a phase, who was busy in it, and whether the ground was the limit."""
        cores = self.meter.read()
        own = cores["operator"]
        others = sum(cores.values()) - own
        told = " ".join(f"{name}={value:.3g}" for name, value in figures.items())
        limit = ""
        if others + own > 0.9 * (os.cpu_count() or 1) and own < others / 2:
            limit = " <- all cores are busy and most of it is the control plane: the ground is the limit"
        spent = f"operator {own * self.meter.took_s:.1f} CPU s"
        print(f"  {what}: {told}  cores {written(cores)}, {spent}{limit}", flush=True)

    async def metrics(self) -> list[Any]:
        """Every sample that the operator tells."""
        async with aiohttp.ClientSession() as session, session.get(f"{self.operator.url}/metrics") as response:
            families = text_string_to_metric_families(await response.text())
            return [sample for family in families for sample in family.samples]


def writes(samples: list[Any]) -> dict[str, float]:
    """Writes so far by verb and resource."""
    found = [one for one in samples if one.name == Metric.OPERATOR_WRITES]
    return {f"{one.labels['verb']} {one.labels['resource']}": one.value for one in found}


def slow_visits(samples: list[Any]) -> str:
    """How many visits there were, and how many took longer than each bound that any has passed."""
    name = f"{Metric.OPERATOR_RECONCILE_SECONDS}_bucket"
    ranked = sorted((float(one.labels["le"]), int(one.value)) for one in samples if one.name == name)
    total = ranked[-1][1]
    over = ", ".join(f"{total - count} over {bound:g} s" for bound, count in ranked if 0 < total - count < total)
    return f"{total} visits: {over}"


def p99_ms(samples: list[Any]) -> float:
    """The 99th percentile of a visit, by the histogram's buckets with a straight line inside one."""
    buckets = [one for one in samples if one.name == f"{Metric.OPERATOR_RECONCILE_SECONDS}_bucket"]
    ranked = sorted((float(one.labels["le"]), float(one.value)) for one in buckets)
    rank, below, lower = 0.99 * ranked[-1][1], 0.0, 0.0
    for bound, count in ranked:
        if count >= rank:
            share = (rank - below) / (count - below)
            return 1000 * (lower + share * ((bound if bound != float("inf") else 2 * lower) - lower))
        below, lower = count, bound
    return 0.0


@asynccontextmanager
async def running(plane: ControlPlane, namespace: str, directory: Path, profile: Path | None) -> AsyncIterator[Run]:
    """An operator of the whole cluster, and a watch on the pods of ``namespace``."""
    key = directory / "master-key"
    key.write_text("k" * 40)
    wrapper = () if profile is None else ("-m", "cProfile", "-o", str(profile))
    async with connection(plane) as session:
        pods = Pods(session, namespace_of(plane, namespace))
        following = asyncio.create_task(pods.follow())
        operator = OperatorProcess(
            plane.kubeconfig, namespace, key, directory / f"{namespace}.log", name=namespace, image="simulated",
            cluster=True, lease_seconds=30, wrapper=wrapper,
        )  # fmt: skip
        try:
            run = Run(plane, session, pods, operator)
            while not any(one.name == Metric.OPERATOR_LEADING and one.value for one in await run.metrics()):
                await asyncio.sleep(0.1)
            yield run
        finally:
            operator.stop()
            following.cancel()


async def run_a(run: Run, groups: int) -> dict[str, float]:
    """Create, double under loss of a pod, halve, rest, end."""
    print(f"run A: {groups} groups, engine Custom, Gates, budgets, tokens", flush=True)
    before = writes(await run.metrics())
    made = await run.create(groups, custom=True)
    after = writes(await run.metrics())
    per_group = {name: round((value - before.get(name, 0.0)) / groups, 2) for name, value in after.items()}
    print(f"  writes per group: {sum(per_group.values()):.2f}: {json.dumps(per_group)}", flush=True)
    began = await run.scale(2 * groups)
    await run.pods.more_than(3 * groups)
    lost = await run.lose_one()
    print(f"  a lost pod was replaced after {lost:.2f} s in the midst of it", flush=True)
    await run.grown(began, 2 * groups, new=groups)
    await run.shrunk(await run.scale(groups), groups)
    await run.told(groups)
    cores = await run.rest()
    to_zero = await run.shrunk(await run.scale(0), 0)
    print(f"  {slow_visits(await run.metrics())}", flush=True)
    return {
        "created_groups_per_s": made["created"],
        "ready_groups_per_s": made["ready"],
        "to_zero_s": to_zero,
        "writes_per_group": sum(per_group.values()),
        "replaced_in_flood_s": lost,
        "rest_cores": cores,
        "reconcile_p99_ms": p99_ms(await run.metrics()),
        "rss_mb": peak_rss_mb(run.operator.process.pid),
    }


async def run_b(run: Run, groups: int) -> dict[str, float]:
    """Create, rest and end groups whose leaders are heard."""
    print(f"run B: {groups} groups, our own engine, one /watch each", flush=True)
    async with Stages(run.pods).listening():
        made = await run.create(groups, custom=False)
        cores = await run.rest()
        to_zero = await run.shrunk(await run.scale(0), 0)
    print(f"  {slow_visits(await run.metrics())}", flush=True)
    return {
        "watch_created_groups_per_s": made["created"],
        "watch_ready_groups_per_s": made["told"],
        "watch_to_zero_s": to_zero,
        "watch_rest_cores": cores,
        "watch_reconcile_p99_ms": p99_ms(await run.metrics()),
        "watch_rss_mb": peak_rss_mb(run.operator.process.pid),
    }


async def run_bare(plane: ControlPlane, groups: int) -> dict[str, float]:
    """What a client does that only makes and deletes pods."""
    async with connection(plane) as session:
        pods = Pods(session, namespace_of(plane, "bare"))
        following = asyncio.create_task(pods.follow())
        figures = await bare(session, pods, groups)
        following.cancel()
    print(f"bare client: {json.dumps({name: round(value, 2) for name, value in figures.items()})}", flush=True)
    return {f"bare_{name}{'' if name.endswith('_s') else '_groups_per_s'}": value for name, value in figures.items()}


async def measure(options: argparse.Namespace) -> dict[str, float]:
    """All runs on one ground."""
    groups = 50 if options.quick else options.groups
    figures: dict[str, float] = {}
    with ground(options.nodes) as plane, tempfile.TemporaryDirectory() as name:
        figures |= await run_bare(plane, groups)
        if "A" in options.runs:
            async with running(plane, "run-a", Path(name), options.profile) as run:
                figures |= await run_a(run, groups)
        if "B" in options.runs:
            async with running(plane, "run-b", Path(name), None) as run:
                figures |= await run_b(run, groups)
    return figures


def main() -> int:
    """Run it all and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", type=int, default=500, help="groups of two pods (%(default)s)")
    parser.add_argument("--nodes", type=int, default=100, help="KWOK nodes (%(default)s)")
    parser.add_argument("--quick", action="store_true", help="50 groups, under three minutes")
    parser.add_argument("--runs", default="AB", help="which runs beside the bare client (%(default)s)")
    parser.add_argument("--profile", type=Path, help="where to write the operator's profile of run A")
    figures = asyncio.run(measure(parser.parse_args()))
    print(json.dumps({name: round(value, 3) for name, value in figures.items()}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
