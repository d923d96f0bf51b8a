"""What the router adds to a unary request, beside a bare aiohttp relay and nginx, in one run on one machine.

Stub workers and the load are one small Go program (`benchmarks/load`, compiled here). The load is open-loop: requests
leave on time whatever comes back. Each round visits every relay and the worker itself; "added" is the relay's latency
less the worker's own of the same round, and the median over rounds counts. Events per second, decision time and memory
are measured by the parts named below. Last line: JSON.
"""

import argparse
import asyncio
import contextlib
import json
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

sys.path.insert(0, str(Path(__file__).parent.parent))
from benchmarks.router_relay import CHAT, compare, start
from bireme.process import die_with_parent
from bireme.wire.requests import Limits
from bireme.wire.routes import Route, Routes, write_routes
from bireme.wire.state import ReloadState, StateDocument
from bireme_router.accounts import Accounts
from bireme_router.caller import Caller
from bireme_router.groups import Groups
from bireme_router.job import make_job, read_fields
from bireme_router.selection import Selection, Wish

HERE: Final = Path(__file__).parent
BODY: Final = '{"model":"m","messages":[{"role":"user","content":"' + "x" * 900 + '"}]}'
NGINX: Final = """
worker_processes 1; daemon off; pid %(dir)s/nginx.pid; error_log stderr error;
events { worker_connections 4096; }
http { access_log off; client_body_temp_path %(dir)s; proxy_temp_path %(dir)s; fastcgi_temp_path %(dir)s;
  uwsgi_temp_path %(dir)s; scgi_temp_path %(dir)s;
  upstream worker { server %(worker)s; keepalive 256; }
  server { listen 127.0.0.1:%(port)d; location / {
    proxy_pass http://worker; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off; } } }
"""


def state_of(group: str) -> StateDocument:
    """A group that always serves."""
    zeros = {int: 0, float: 0.0, str: "", bool: False}
    values: dict[str, Any] = {field.name: zeros.get(field.type) for field in msgspec.structs.fields(StateDocument)}
    values |= {"reload": ReloadState(), "limits": Limits(0, 0, 0), "stages": (), "state": "Serving"}
    return StateDocument(**{**values, "group": group, "incarnation": 1, "epoch": 1, "model_revision": "r"})


@contextlib.contextmanager
def targets(load: Path, directory: Path) -> Iterator[dict[str, tuple[str, int]]]:
    """URL and pid of the worker itself and of each relay before it."""
    with contextlib.ExitStack() as running:

        def run(*command: str) -> tuple[str, int]:
            child, line = start(*command)
            running.callback(child.wait)
            running.callback(child.terminate)
            return line, child.pid

        line, pid = run(str(load), "serve", "--state", msgspec.json.encode(state_of("g")).decode())
        worker = json.loads(line)["url"]
        (directory / "token").write_text("ab" * 32)
        route = Route("g", 0, "p", 1, worker, worker, str(directory / "token"))
        (directory / "routes.json").write_bytes(write_routes(Routes(1, ("m",), (route,))))
        found = {"worker": (worker, pid)}
        found["bare"] = run(sys.executable, str(HERE / "router_relay.py"), "--role", "bare", "--upstream", worker)
        command = ("-m", "bireme_router.main", "--routes", str(directory / "routes.json"), "--port", "0")
        line, pid = run(sys.executable, *command)
        found["router"] = (line.split()[-1], pid)
        if nginx := shutil.which("nginx", path="/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin"):
            port = random.randint(20_000, 30_000)
            address = worker.removeprefix("http://")
            (directory / "nginx.conf").write_text(NGINX % {"dir": directory, "worker": address, "port": port})
            child = subprocess.Popen([nginx, "-c", str(directory / "nginx.conf"), "-p", str(directory)])
            running.callback(child.wait)
            running.callback(child.terminate)
            found["nginx"] = (f"http://127.0.0.1:{port}", child.pid)
        yield found


def fire(load: Path, url: str, rate: int, seconds: float) -> dict[str, float]:
    """One round of load; every request must be answered."""
    command = [str(load), "run", "--url", url + CHAT, "--rate", str(rate), "--for", f"{seconds}s", "--body", BODY]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def rss_mb(pid: int) -> float:
    """Resident memory."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS"))


def unary(load: Path, options: argparse.Namespace, directory: Path) -> dict[str, float]:
    """Added latency of each relay, and the growth of the router's memory over the rounds after the first."""
    added: dict[str, list[tuple[float, float]]] = {}
    failed = 0.0
    with targets(load, directory) as found:
        for url, _ in found.values():
            until_it_answers(load, url)
            fire(load, url, options.rate, 1.0)
        before = rss_mb(found["router"][1])
        for number in range(options.rounds):
            own = fire(load, found["worker"][0], options.rate, options.seconds)
            for name, (url, _) in found.items():
                figures = own if name == "worker" else fire(load, url, options.rate, options.seconds)
                failed += figures["failed"]
                pair = figures["p50_ms"] - own["p50_ms"], figures["p99_ms"] - own["p99_ms"]
                added.setdefault(name, []).append(pair)
                print(f"round {number + 1} {name}: p50 {figures['p50_ms']:.2f} ms, p99 {figures['p99_ms']:.2f} ms, "
                      f"{figures['failed']:.0f} failed", flush=True)  # fmt: skip
        growth = rss_mb(found["router"][1]) - before
    medians = {
        name: [statistics.median(column) for column in zip(*pairs, strict=True)] for name, pairs in added.items()
    }
    result = {"rss_growth_mb": round(growth, 1), "failed": failed}
    for name, prefix in (("router", ""), ("bare", "bare_"), ("nginx", "nginx_")):
        if name in medians:
            result[f"{prefix}added_p50_ms"], result[f"{prefix}added_p99_ms"] = (round(x, 3) for x in medians[name])
    return result


def until_it_answers(load: Path, url: str) -> None:
    """Wait for a relay that has just started."""
    deadline = time.monotonic() + 20
    while fire(load, url, 20, 0.1)["failed"]:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{url} answers no request")
        time.sleep(0.1)


async def decisions(count: int) -> dict[str, float]:
    """How long it takes to choose among 64 groups for prompts of 100,000 tokens, and to read such a body before."""
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
    for number in range(count):
        began = time.perf_counter()
        job = make_job(
            CHAT, read_fields(body, ("m",)), body_bytes=len(body), request_id=str(number), headers={},
            caller=Caller(), now=clock(), limit_s=60.0,
        )  # fmt: skip
        wish = Wish(job.cost(128.0), None, {}, job.priority, job.key, job.trail, 60.0)
        middle = time.perf_counter()
        lease = selection.choose(wish)
        chosen.append(time.perf_counter() - middle)
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
    parser.add_argument("--quick", action="store_true", help="two short rounds, under two minutes")
    options = parser.parse_args()
    if options.quick:
        options.seconds, options.rounds = 4.0, 2
    relay = argparse.Namespace(streams=50, events=200, interval=0.02, rounds=2 if options.quick else 5)
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        load = directory / "load"
        subprocess.run(["go", "build", "-o", load, "."], cwd=HERE / "load", check=True)
        result = asyncio.run(decisions(300 if options.quick else 2000))
        print(result, flush=True)
        result |= unary(load, options, directory)
        events = asyncio.run(compare(relay, directory))
    result |= {"events_ratio_to_bare": events["relay_ratio"], "router_us_per_event": events["router_us_per_event"]}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
