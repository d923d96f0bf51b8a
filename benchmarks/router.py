"""What the router adds to a unary request, beside a bare aiohttp relay, nginx and litellm's proxy, in one run.

Stub workers and the load are one small Go program (`benchmarks/load`, compiled here). The load is open-loop: requests
leave on time whatever comes back. Each round visits every relay and the worker itself; "added" is the relay's latency
less the worker's own of the same round, and the median over rounds counts. Then: a decision among 64 groups, CPU per
400 KB body, memory over mixed requests and per stream that nobody reads, events relayed per core. Last line: JSON.
"""

import argparse
import asyncio
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import msgspec

sys.path.insert(0, str(Path(__file__).parent.parent))
from benchmarks.router_relay import CHAT, compare, cpu_s
from benchmarks.router_targets import HERE, Target, fire, rss_kb, state_of, targets, until_it_answers
from bireme.process import die_with_parent
from bireme.wire.routes import Route, Routes
from bireme_router.accounts import Accounts
from bireme_router.caller import Caller
from bireme_router.groups import Groups
from bireme_router.job import make_job, read_fields
from bireme_router.main import quiet_collector
from bireme_router.selection import Selection, Wish

LARGE: Final = '{"model":"m","messages":[{"role":"user","content":"%FILL%"}]}'
LARGE_BYTES: Final = 400_000
LARGE_RATE: Final = 900


def added(load: Path, found: dict[str, Target], options: argparse.Namespace) -> dict[str, float]:
    """Added latency of each relay at the rate, or at the most that it can take."""
    pairs: dict[str, list[tuple[float, float]]] = {}
    failed: dict[str, float] = {}
    for target in found.values():
        until_it_answers(load, target.url)
        fire(load, target.url, min(options.rate, target.rate), 1.0)
    for number in range(options.rounds):
        own = fire(load, found["worker"].url, options.rate, options.seconds)
        for name, target in found.items():
            rate = min(options.rate, target.rate)
            figures = own if name == "worker" else fire(load, target.url, rate, options.seconds)
            failed[name] = failed.get(name, 0.0) + figures["failed"]
            pairs.setdefault(name, []).append((figures["p50_ms"] - own["p50_ms"], figures["p99_ms"] - own["p99_ms"]))
            print(f"round {number + 1} {name} at {rate}/s: p50 {figures['p50_ms']:.2f} ms, "
                  f"p99 {figures['p99_ms']:.2f} ms, {figures['failed']:.0f} failed", flush=True)  # fmt: skip
    result: dict[str, float] = {"failed": failed["router"]}
    for name, column in pairs.items():
        if name != "worker":
            prefix = "" if name == "router" else f"{name}_"
            for quantile, values in zip(("p50", "p99"), zip(*column, strict=True), strict=True):
                result[f"{prefix}added_{quantile}_ms"] = round(statistics.median(values), 3)
    return result


def large_bodies(load: Path, found: dict[str, Target], seconds: float) -> dict[str, float]:
    """CPU per 400 KB body of a process that has always one to do; its inverse is what one core takes in a second."""
    each = {}
    for name in ("bare", "router"):
        target = found[name]
        fire(load, target.url, LARGE_RATE, 1.0, body=LARGE, fill=LARGE_BYTES)
        before = cpu_s(target.pid)
        figures = fire(load, target.url, LARGE_RATE, seconds, body=LARGE, fill=LARGE_BYTES)
        each[name] = (cpu_s(target.pid) - before) / max(figures["requests"], 1.0)
        print(f"{name}: {each[name] * 1e3:.2f} ms of CPU per body of 400 KB", flush=True)
    return {
        "large_body_ms": round(each["router"] * 1e3, 3),
        "large_bodies_per_core_s": round(1 / each["router"]),
        "bare_large_bodies_per_core_s": round(1 / each["bare"]),
    }


def soak(load: Path, router: Target, requests: int) -> dict[str, float]:
    """Memory over mixed requests, after a first tenth that warms up."""
    for count in (requests // 10, requests):
        before, began = rss_kb(router.pid), time.monotonic()
        command = [str(load), "mix", "--url", router.url + CHAT, "--count", str(count)]
        wrong = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)["wrong"]
        print(f"{count} mixed requests in {time.monotonic() - began:.1f} s, {wrong} answered wrongly", flush=True)
    return {"rss_growth_mb": round((rss_kb(router.pid) - before) / 1024, 2), "mixed_wrong": wrong}


def unread_streams(load: Path, router: Target, streams: int) -> dict[str, float]:
    """Memory per open stream whose client reads nothing while the worker has megabytes for it."""
    before = rss_kb(router.pid)
    command = [str(load), "idle", "--url", router.url + CHAT, "--count", str(streams)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        child.stdout.readline()
        time.sleep(3.0)  # everything that fits anywhere is there by then
        each = (rss_kb(router.pid) - before) / streams
        assert child.stdin is not None
        child.stdin.close()
    return {"kb_per_unread_stream": round(each, 1)}


async def decisions(count: int) -> dict[str, float]:
    """CPU time to choose among 64 groups for prompts of 100,000 tokens, and to read and hash such a body before."""
    clock = asyncio.get_running_loop().time
    groups = Groups(Accounts(), clock)
    routes = tuple(Route(f"g{i}", i, f"p{i}", 1, "http://h", "http://h", "t") for i in range(64))
    groups.apply(Routes(1, ("m",), routes), {route.pod: "t" for route in routes})
    for route in routes:
        groups.heard(route, state_of(route.group))
    selection = Selection(groups, clock, random.random)
    text = " ".join(random.choice(("sea", "oar", "mast", "stern")) for _ in range(100_000))
    body = msgspec.json.encode({"model": "m", "messages": [{"role": "user", "content": text}]})
    chosen, parsed = [], []
    quiet_collector()  # as the router does
    for number in range(count):
        began = time.thread_time()
        job = make_job(
            CHAT, read_fields(body, ("m",)), body_bytes=len(body), request_id=str(number), headers={},
            caller=Caller(), now=clock(), limit_s=60.0,
        )  # fmt: skip
        wish = Wish(job.cost(128.0), None, {}, job.priority, job.key, job.trail, 60.0)
        middle = time.thread_time()
        lease = selection.choose(wish)
        chosen.append(time.thread_time() - middle)
        parsed.append(middle - began)
        assert lease is not None
        lease.release()
    p99 = round(0.99 * (count - 1))
    return {
        "decision_ms_p50": round(statistics.median(chosen) * 1e3, 4),
        "decision_ms_p99": round(sorted(chosen)[p99] * 1e3, 4),
        "parse_and_hash_ms_p99": round(sorted(parsed)[p99] * 1e3, 3),
    }


def main() -> None:
    """Parse and run."""
    die_with_parent()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=int, default=1000, help="requests per second (%(default)s)")
    parser.add_argument("--seconds", type=float, default=10.0, help="length of each measurement (%(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds (%(default)s)")
    parser.add_argument("--mixed", type=int, default=100_000, help="mixed requests of the soak (%(default)s)")
    parser.add_argument("--litellm", help="litellm's command, of an environment with litellm[proxy] (in PATH)")
    parser.add_argument("--litellm-rate", type=int, default=20, help="requests per second for litellm (%(default)s)")
    parser.add_argument("--quick", action="store_true", help="two short rounds, under two minutes")
    options = parser.parse_args()
    if options.quick:
        options.seconds, options.rounds, options.mixed = 3.0, 2, 20_000
    relay = argparse.Namespace(streams=50, events=200, interval=0.02, rounds=2 if options.quick else 5)
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        load = directory / "load"
        subprocess.run(["go", "build", "-o", load, "."], cwd=HERE / "load", check=True)
        result: dict[str, float] = asyncio.run(decisions(300 if options.quick else 2000))
        print(result, flush=True)
        with targets(load, directory, options.litellm, options.litellm_rate) as found:
            result |= added(load, found, options)
            router = found["router"]
            result |= unread_streams(load, router, 100)
            result |= large_bodies(load, found, options.seconds)
            result |= soak(load, router, options.mixed)
        events = asyncio.run(compare(relay, directory))
    result |= {"events_ratio_to_bare": events["relay_ratio"], "router_us_per_event": events["router_us_per_event"]}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
