"""A real `bireme up` for tests: start it, see what it says, kill parts of it, stop it, and find what it left behind."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import yaml

from bireme.names import Env
from bireme.wire.routes import Route, Routes, read_routes
from bireme.wire.state import StateDocument, read_state

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
START_LIMIT_S = 180
RECOVER_LIMIT_S = 90
GONE_LIMIT_S = 30
"""The kernel ends children of what was killed at once, but each ends in its own time: 3 GB are given back first."""


@dataclass
class Deployment:
    """One running `bireme up`; everything is read from where a user would read it."""

    name: str
    run_dir: Path
    port: int
    process: subprocess.Popen[str]
    log: Path
    client: httpx.Client = field(default_factory=lambda: httpx.Client(timeout=30))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def status(self) -> dict[str, Any]:
        """The object with its status, as `bireme status -o json` prints it."""
        document: dict[str, Any] = json.loads((self.run_dir / self.name / "status.json").read_text())
        return document

    def groups(self) -> list[dict[str, Any]]:
        with contextlib.suppress(FileNotFoundError):
            groups: list[dict[str, Any]] = self.status()["status"]["groups"]
            return groups
        return []

    def routes(self) -> Routes:
        return read_routes((self.run_dir / self.name / "routes.json").read_bytes())

    def route(self, index: int) -> Route:
        return next(route for route in self.routes().groups if route.index == index)

    def state(self, index: int) -> StateDocument:
        """The leader's own document of group ``index``."""
        route = self.route(index)
        token = Path(route.token_file).read_text().strip()
        answer = self.client.get(f"{route.admin}/state", headers={"authorization": f"Bearer {token}"})
        answer.raise_for_status()
        return read_state(answer.content)

    def ready(self, index: int) -> bool:
        """What the leader's `/readyz` says; nobody there is not ready."""
        try:
            return self.client.get(f"{self.route(index).admin}/readyz").status_code == 200
        except (httpx.TransportError, StopIteration, FileNotFoundError):
            return False

    def moved_on(self, index: int, epoch: int) -> bool:
        """Whether the group is not ready, or has been so since it served ``epoch``: who looks late sees that too."""
        if not self.ready(index):
            return True
        try:
            return self.state(index).epoch > epoch
        except (httpx.HTTPError, StopIteration, FileNotFoundError):
            return False

    def serves_later(self, index: int, epoch: int) -> bool:
        """Whether the group serves an epoch after ``epoch``, by status and by its own word."""
        told = any(g["index"] == index and g["state"] == "Serving" and g.get("epoch", 0) > epoch for g in self.groups())
        return told and self.ready(index)

    def wait_later(self, index: int, epoch: int, limit_s: float = RECOVER_LIMIT_S) -> None:
        """Wait until the group serves an epoch after ``epoch``."""
        until(
            lambda: self.serves_later(index, epoch),
            limit_s,
            lambda: f"group {index} does not serve after epoch {epoch}: {self.groups()}\n{self.tail()}",
            self.process,
        )

    def killings(self) -> int:
        """How many ranks were killed by their supervisors so far, by the logs."""
        logs = (self.run_dir / self.name / "logs").glob("*.log")
        return sum(log.read_text(errors="replace").count("killing rank ") for log in logs)

    def wait_serving(self, count: int, limit_s: float = START_LIMIT_S) -> None:
        """Wait until ``count`` groups serve, by status and by their own word."""
        until(
            lambda: sum(g["state"] == "Serving" and self.ready(g["index"]) for g in self.groups()) == count,
            limit_s,
            lambda: f"{count} groups do not serve: {self.groups()}\n{self.tail()}",
            self.process,
        )

    def tail(self) -> str:
        """The ends of all logs, for a failure's message."""
        logs = [self.log, *sorted((self.run_dir / self.name / "logs").glob("*.log"))]
        return "\n".join(f"--- {path.name}\n{path.read_text(errors='replace')[-3000:]}" for path in logs)

    def stop(self, number: signal.Signals = signal.SIGINT, limit_s: float = 60) -> int:
        """Send ``number`` and wait for the end."""
        self.process.send_signal(number)
        return self.process.wait(limit_s)

    def leftovers(self) -> list[str]:
        """Processes that still belong to this deployment, as `pid command`."""
        return [text for pid, text in processes_with(f"{Env.RUN_DIR}={self.run_dir}") if pid != self.process.pid]

    def wait_gone(self) -> None:
        """Wait until no process is left but `bireme up` itself."""
        until(lambda: not self.leftovers(), GONE_LIMIT_S, lambda: f"still there: {self.leftovers()}")


@contextlib.contextmanager
def running(
    file: Path, run_dir: Path, port: int, mounts: dict[str, Path], extra: tuple[str, ...] = ()
) -> Iterator[Deployment]:
    """`bireme up -f file`; at the end it is stopped, and whatever it left is killed by pid and fails the test."""
    log = run_dir / "up.log"
    with open(log, "w") as output:
        process = subprocess.Popen(
            up_command(file, port, mounts, extra),
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
            env=up_environment(run_dir),
        )
    name: str = yaml.safe_load(file.read_text())["metadata"]["name"]
    deployment = Deployment(name, run_dir, port, process, log)
    try:
        yield deployment
    finally:
        with contextlib.suppress(ProcessLookupError):
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        left = _left_for_good(deployment)
        for entry in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(entry.split()[0]), signal.SIGKILL)
        deployment.client.close()
    assert not left, f"left behind: {left}"


def _left_for_good(deployment: Deployment) -> list[str]:
    """What does not end by itself."""
    end = time.monotonic() + GONE_LIMIT_S
    while (left := deployment.leftovers()) and time.monotonic() < end:
        time.sleep(0.05)
    return left


def up_to_its_end(
    file: Path, run_dir: Path, port: int, mounts: dict[str, Path], extra: tuple[str, ...] = ()
) -> "subprocess.CompletedProcess[str]":
    """`bireme up` that ends by itself: what it said and its exit code."""
    return subprocess.run(
        up_command(file, port, mounts, extra),
        capture_output=True,
        text=True,
        env=up_environment(run_dir),
        timeout=START_LIMIT_S,
        check=False,
    )


def up_command(file: Path, port: int, mounts: dict[str, Path], extra: tuple[str, ...] = ()) -> list[str]:
    """The command line of `bireme up`."""
    command = [sys.executable, "-m", "bireme.cli.main", "up", "-f", str(file), "--port", str(port), *extra]
    for inside, outside in mounts.items():
        command += ["--mount", f"{inside}={outside}"]
    return command


def up_environment(run_dir: Path) -> dict[str, str]:
    """The environment of a `bireme up` whose state lies in ``run_dir``."""
    return {**os.environ, Env.RUN_DIR: str(run_dir), "PYTHONUNBUFFERED": "1"}


def variant(example: Path, directory: Path, spec: dict[str, Any], name: str = "variant") -> Path:
    """Write ``example`` into ``directory`` with another name and some fields of its spec replaced."""
    document = yaml.safe_load(example.read_text())
    document["metadata"]["name"] = name
    document["spec"] |= spec
    file = directory / f"{name}.yaml"
    file.write_text(yaml.safe_dump(document, sort_keys=False))
    return file


def processes_with(marker: str) -> list[tuple[int, str]]:
    """Processes whose environment holds ``marker``, zombies excluded."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if marker.encode() in (entry / "environ").read_bytes().split(b"\0"):
                    command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                    found.append((int(entry.name), f"{entry.name} {command}"))
    return found


def alive(pid: int) -> bool:
    """Whether the process runs; a zombie, which only waits for its parent's attention, does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def parent_of(pid: int) -> int:
    """The parent's pid."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def until(condition: Any, limit_s: float, message: Any, process: subprocess.Popen[str] | None = None) -> None:
    """Poll ``condition`` until it holds; fail with ``message()`` after ``limit_s`` seconds or when ``process`` ends."""
    end = time.monotonic() + limit_s
    while not condition():
        assert process is None or process.poll() is None, f"ended with {process.returncode}: {message()}"
        assert time.monotonic() < end, message()
        time.sleep(0.05)
