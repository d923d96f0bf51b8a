"""What benchmarks/router.py asks: a stub worker, and before it the router, a bare relay, nginx and litellm's proxy.

nginx is Debian's package, litellm is PyPI's `litellm[proxy]` in an environment of its own; where one is not installed
it is left out and the output says so.
"""

import contextlib
import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from benchmarks.router_relay import CHAT, start
from bireme.wire.requests import Limits
from bireme.wire.routes import Route, Routes, write_routes
from bireme.wire.state import ReloadState, StateDocument

HERE: Final = Path(__file__).parent
BODY: Final = '{"model":"m","messages":[{"role":"user","content":"' + "x" * 900 + '"}]}'
PATHS: Final = "/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin"
NGINX: Final = """
worker_processes 1; daemon off; pid %(dir)s/nginx.pid; error_log stderr error;
events { worker_connections 4096; }
http { access_log off; client_body_temp_path %(dir)s; proxy_temp_path %(dir)s; fastcgi_temp_path %(dir)s;
  uwsgi_temp_path %(dir)s; scgi_temp_path %(dir)s;
  upstream worker { server %(worker)s; keepalive 256; }
  server { listen 127.0.0.1:%(port)d; location / {
    proxy_pass http://worker; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off; } } }
"""
LITELLM: Final = """
model_list: [{model_name: m, litellm_params: {model: openai/m, api_base: "%(worker)s/v1", api_key: none}}]
"""


LITELLM_ENVIRONMENT: Final = {
    "LITELLM_LOG": "ERROR",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",  # nobody but the load asks it
}


class Target(NamedTuple):
    """``rate``: requests per second at most; litellm takes no thousand on these cores."""

    url: str
    pid: int
    rate: int = 1_000_000


def state_of(group: str) -> StateDocument:
    """A group that always serves."""
    zeros = {int: 0, float: 0.0, str: "", bool: False}
    values: dict[str, Any] = {field.name: zeros.get(field.type) for field in msgspec.structs.fields(StateDocument)}
    values |= {"reload": ReloadState(), "limits": Limits(0, 0, 0), "stages": (), "state": "Serving"}
    return StateDocument(**{**values, "group": group, "incarnation": 1, "epoch": 1, "model_revision": "r"})


@contextlib.contextmanager
def targets(load: Path, directory: Path, litellm: str | None, litellm_rate: int) -> Iterator[dict[str, Target]]:
    """The worker itself and each relay before it."""
    with contextlib.ExitStack() as running:

        def keep(child: subprocess.Popen[Any]) -> int:
            running.callback(child.wait)
            running.callback(child.terminate)
            return child.pid

        child, line = start(str(load), "serve", "--state", msgspec.json.encode(state_of("g")).decode())
        worker = json.loads(line)["url"]
        found = {"worker": Target(worker, keep(child))}
        child, line = start(sys.executable, str(HERE / "router_relay.py"), "--role", "bare", "--upstream", worker)
        found["bare"] = Target(line, keep(child))
        child, line = start_router(worker, directory)
        found["router"] = Target(line.split()[-1], keep(child))
        if nginx := shutil.which("nginx", path=PATHS):
            port = random.randint(20_000, 30_000)
            known = {"dir": directory, "worker": worker.removeprefix("http://"), "port": port}
            (directory / "nginx.conf").write_text(NGINX % known)
            child = subprocess.Popen([nginx, "-c", str(directory / "nginx.conf"), "-p", str(directory)], text=True)
            found["nginx"] = Target(f"http://127.0.0.1:{port}", keep(child))
        if command := litellm or shutil.which("litellm"):
            port = random.randint(30_001, 32_000)
            (directory / "litellm.yaml").write_text(LITELLM % {"worker": worker})
            words = [command, "--config", str(directory / "litellm.yaml"), "--host", "127.0.0.1", "--port", str(port)]
            with (directory / "litellm.log").open("w") as log:
                own = {**os.environ, **LITELLM_ENVIRONMENT}
                child = subprocess.Popen(words, stdout=log, stderr=log, env=own, text=True)
            found["litellm"] = Target(f"http://127.0.0.1:{port}", keep(child), litellm_rate)
        for name in {"nginx", "litellm"} - found.keys():
            print(f"{name} is not installed here and left out", flush=True)
        yield found


def start_router(worker: str, directory: Path) -> tuple[subprocess.Popen[str], str]:
    """The router before one worker."""
    (directory / "token").write_text("ab" * 32)
    route = Route("g", 0, "p", 1, worker, worker, str(directory / "token"))
    (directory / "routes.json").write_bytes(write_routes(Routes(1, ("m",), (route,))))
    command = ("-m", "bireme_router.main", "--routes", str(directory / "routes.json"), "--port", "0")
    return start(sys.executable, *command)


def fire(load: Path, url: str, rate: int, seconds: float, *, body: str = BODY, fill: int = 0) -> dict[str, float]:
    """One round of load at a fixed rate."""
    command = [str(load), "run", "--url", url + CHAT, "--rate", str(rate), "--for", f"{seconds}s", "--body", body]
    done = subprocess.run([*command, "--fill", str(fill)], check=True, capture_output=True, text=True)
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def until_it_answers(load: Path, url: str) -> None:
    """Wait for a relay that has just started."""
    deadline = time.monotonic() + 90
    while fire(load, url, 20, 0.1)["failed"]:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{url} answers no request")
        time.sleep(0.1)


def rss_kb(pid: int) -> int:
    """Resident memory."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))
