"""How the operator fares with many groups: 500 groups of two pods on 100 KWOK nodes, and a bare client beside it.

`python benchmarks/operator_scale.py` builds a control plane on this machine and runs, one after the other:

- a bare client that makes as many pods with 32 requests at once and deletes them: what the ground itself can do;
- run A: `engine: Custom`, the Gates provider, disruption budgets and tokens on; from nothing to all groups, to twice
  as many (one serving group loses a pod meanwhile), back to half, half a minute of rest, to zero;
- run B: our own engine, each leader heard on its `/watch`; from nothing to all groups, rest, to zero.

Rates are groups by the time from the wish to the last pod. After each phase stands who used how many cores, and what
operator and control plane (KWOK included) spent of them on each group; where all cores are busy and most of them with
the control plane, the ground is the limit, and the line says so.

The lost pod's successor is timed from the request that deletes the pod to the moment a watch shows the new one. It is
told as well whose time that was: the API server's while it had one of the requests that the operator waits for (the
delete, the live look at the group, the note of what is intended, the create), and the operator's all the rest, by the
server's own audit log. The bare client loses a pod amid its flood too, and makes it again when it sees that.

Two cores have to do for all programs, so the ground is kept from spending them on what a cluster's operator would not
wait for. Scheduler, controller manager and KWOK work without the limits that they set themselves: by Kubernetes'
defaults the scheduler binds at most 50 pods a second, whoever made them, and KWOK is one process for all nodes. Changes
of endpoints are gathered for a second (the controller manager's own switch), each program of the control plane collects
garbage a quarter as often as Go does by default (GOGC=400) and stands back where the operator wants a core; etcd does
not wait for the disk. Run B has a ground of its own, whose pods have addresses that can be dialled. The audit log, 3
parts of 100 of the API server's time, is on throughout. `--throttled` leaves all that as it is by default, but for etcd
and the audit log.

Last line: JSON. `--quick` takes 50 groups. `--profile` writes the operator's CPU profile of run A.
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

from benchmarks.operator_scale_ground import Ground, Pods, Sight, Stages, bare, connection, ground, namespace_of
from benchmarks.operator_scale_meter import Meter, Replaced, peak_rss_mb, replaced
from bireme.names import Metric
from tests.operator.process import OperatorProcess

_MERGE: Final = {"content-type": "application/merge-patch+json"}
_SETTLED_S: Final = 30.0
_LOSES: Final = "0"
"""The group that loses a pod."""


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

    def __init__(self, on: Ground, session: aiohttp.ClientSession, pods: Pods, operator: OperatorProcess) -> None:
        self.session = session
        self.audit = on.plane.files.audit_log
        self.pods = pods
        self.operator = operator
        self.namespace = pods.namespace
        pods.alive = self.alive
        self.meter = Meter({"operator": operator.process.pid, **on.processes, "benchmark": os.getpid()})

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
        self.say(f"{groups} groups", figures, new)
        return figures

    async def told(self, groups: int) -> None:
        """Wait until the status says that so many groups serve, and no more are there."""
        while True:
            async with self.session.get(f"{self.url}/scale") as response:
                status = (await response.json()).get("status") or {}
            if status.get("readyReplicas") == status.get("replicas") == groups:
                return
            await asyncio.sleep(0.2)

    async def shrunk(self, began: float, groups: int, gone: int) -> float:
        """Wait until only so many groups are left; how long it took."""
        await self.pods.until(2 * groups, 2 * groups)
        took = time.monotonic() - began
        self.say(f"down to {groups} groups", {"seconds": took}, gone)
        return took

    async def lose_one(self) -> tuple[float, Replaced]:
        """Delete a pod of a serving group; how long until its successor was seen, and whose time that was."""
        victim = next(pod for pod in self.pods.living if pod.group == _LOSES and pod.ready)
        path = f"/api/v1/namespaces/{self.namespace}/pods/{victim.name}"
        offset, known = self.audit.stat().st_size, set(self.pods.by_uid)

        def new() -> list[Sight]:
            return [pod for uid, pod in self.pods.by_uid.items() if uid not in known and pod.group == _LOSES]

        began = time.monotonic()
        async with self.session.delete(path, json={"gracePeriodSeconds": 0}) as response:
            response.raise_for_status()
        await self.pods.when(lambda: bool(new()))
        seen = new()[0]
        return seen.made - began, replaced(self.audit, offset, victim.name, seen.name, _LOSES)

    async def rest(self) -> float:
        """The operator's cores while nothing happens."""
        self.meter.start()
        await asyncio.sleep(_SETTLED_S)
        cores = self.meter.read()["operator"] / self.meter.took_s
        self.say("at rest", {"operator_cores": cores}, 0)
        return cores

    def say(self, what: str, figures: dict[str, float], groups: int) -> None:
        """Print a phase, in which so many groups came or went, and who was busy in it."""
        told = " ".join(f"{name}={value:.3g}" for name, value in figures.items())
        print(f"  {what}: {told}  {busy(self.meter, groups)}", flush=True)

    async def metrics(self) -> list[Any]:
        """Every sample that the operator tells."""
        async with aiohttp.ClientSession() as session, session.get(f"{self.operator.url}/metrics") as response:
            families = text_string_to_metric_families(await response.text())
            return [sample for family in families for sample in family.samples]


def busy(meter: Meter, groups: int) -> str:
    """Who used how many cores, what of it each group has cost, and whether the ground was the limit."""
    spent = meter.read()
    own = spent.get("operator", 0.0)
    ground_s = sum(spent.values()) - own - spent["benchmark"]
    told = {**spent, "all others": meter.others_s}
    cores = json.dumps({name: round(value / meter.took_s, 2) for name, value in told.items()})
    each = ""
    if groups:
        each = f", CPU ms per group: operator {1000 * own / groups:.1f}, control plane {1000 * ground_s / groups:.1f}"
    full = sum(spent.values()) > 0.9 * (os.cpu_count() or 1) * meter.took_s and own < ground_s / 2
    limit = " <- all cores are busy and most of it is the control plane: the ground is the limit" if full else ""
    return f"cores {cores}{each}{limit}"


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
async def running(on: Ground, namespace: str, directory: Path, profile: Path | None) -> AsyncIterator[Run]:
    """An operator of the whole cluster, and a watch on the pods of ``namespace``."""
    key = directory / "master-key"
    key.write_text("k" * 40)
    wrapper = () if profile is None else ("-m", "cProfile", "-o", str(profile))
    async with connection(on.plane) as session:
        pods = Pods(session, namespace_of(on.plane, namespace))
        following = asyncio.create_task(pods.follow())
        operator = OperatorProcess(
            on.plane.kubeconfig, namespace, key, directory / f"{namespace}.log", name=namespace, image="simulated",
            cluster=True, lease_seconds=30, wrapper=wrapper,
        )  # fmt: skip
        try:
            run = Run(on, session, pods, operator)
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
    lost, whose = await run.lose_one()
    print(
        f"  a lost pod's successor was seen after {lost:.2f} s in the midst of it; from the end of the pod to the "
        f"create's answer {whose.operator_s:.2f} s were the operator's, {whose.server_s:.2f} s the API server's",
        flush=True,
    )
    await run.grown(began, 2 * groups, new=groups)
    await run.shrunk(await run.scale(groups), groups, gone=groups)
    await run.told(groups)
    cores = await run.rest()
    to_zero = await run.shrunk(await run.scale(0), 0, gone=groups)
    print(f"  {slow_visits(await run.metrics())}", flush=True)
    return {
        "created_groups_per_s": made["created"],
        "ready_groups_per_s": made["ready"],
        "to_zero_s": to_zero,
        "writes_per_group": sum(per_group.values()),
        "replaced_in_flood_s": lost,
        "replaced_operator_s": whose.operator_s,
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
        to_zero = await run.shrunk(await run.scale(0), 0, gone=groups)
    print(f"  {slow_visits(await run.metrics())}", flush=True)
    return {
        "watch_created_groups_per_s": made["created"],
        "watch_ready_groups_per_s": made["told"],
        "watch_to_zero_s": to_zero,
        "watch_rest_cores": cores,
        "watch_reconcile_p99_ms": p99_ms(await run.metrics()),
        "watch_rss_mb": peak_rss_mb(run.operator.process.pid),
    }


async def run_bare(on: Ground, groups: int) -> dict[str, float]:
    """What a client does that only makes and deletes pods."""
    meter = Meter({**on.processes, "benchmark": os.getpid()})
    async with connection(on.plane) as session:
        pods = Pods(session, namespace_of(on.plane, "bare"))
        following = asyncio.create_task(pods.follow())
        meter.start()
        figures = await bare(session, pods, groups)
        following.cancel()
    told = json.dumps({name: round(value, 2) for name, value in figures.items()})
    print(f"bare client, up and down: {told}  {busy(meter, groups)}", flush=True)
    return {f"bare_{name}{'' if name.endswith('_s') else '_groups_per_s'}": value for name, value in figures.items()}


async def measure(options: argparse.Namespace) -> dict[str, float]:
    """All runs, each on its ground."""
    groups = 50 if options.quick else options.groups
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as name:
        with ground(options.nodes, throttled=options.throttled) as on:
            figures |= await run_bare(on, groups)
            if "A" in options.runs:
                async with running(on, "run-a", Path(name), options.profile) as run:
                    figures |= await run_a(run, groups)
        if "B" in options.runs:
            with ground(options.nodes, throttled=options.throttled, dialled=True) as on:
                async with running(on, "run-b", Path(name), None) as run:
                    figures |= await run_b(run, groups)
    return figures


def main() -> int:
    """Run it all and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", type=int, default=500, help="groups of two pods (%(default)s)")
    parser.add_argument("--nodes", type=int, default=100, help="KWOK nodes (%(default)s)")
    parser.add_argument("--quick", action="store_true", help="50 groups, under three minutes")
    parser.add_argument("--runs", default="AB", help="which runs beside the bare client (%(default)s)")
    parser.add_argument("--throttled", action="store_true", help="the ground's programs as they are by default")
    parser.add_argument("--profile", type=Path, help="where to write the operator's profile of run A")
    figures = asyncio.run(measure(parser.parse_args()))
    print(json.dumps({name: round(value, 3) for name, value in figures.items()}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
