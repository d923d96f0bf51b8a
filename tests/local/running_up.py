"""A running `bireme up` under test: start it, read its status, wait for what must come to pass, strike at its processes."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.support.ports import free_port

DRIVER = Path(__file__).with_name("driver.py")
PATIENCE_S = 120.0
"""`up`, a router and up to eight stages are Python processes that start beside whatever else the machine does."""


def deployment(script: str, replicas: int = 1, pipeline: int = 2, **environment: str) -> str:
    variables = {"SCRIPT": script, **environment}
    env = [{"name": name, "value": value} for name, value in variables.items()]
    spec = {
        "replicas": replicas,
        "model": {"source": {"path": "/models/none"}, "revision": "1"},
        "parallelism": {"pipeline": pipeline},
        "template": {"spec": {"containers": [{"name": "worker", "env": env}]}},
        "recovery": {"backoff": {"initialSeconds": 1, "maxSeconds": 1}},
    }
    return yaml.safe_dump(
        {
            "apiVersion": "bireme.dev/v1alpha1",
            "kind": "InferenceDeployment",
            "metadata": {"name": "demo"},
            "spec": spec,
        }
    )


def wait_until(holds: Callable[[], bool], limit_s: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.02)


def states(content: dict[str, Any]) -> list[str]:
    return [group["state"] for group in content["status"]["groups"]]


@dataclass
class Up:
    process: "subprocess.Popen[bytes]"
    root: Path
    said: Path

    @classmethod
    def start(cls, root: Path, text: str, *scene: str) -> "Up":
        file = root / "deployment.yaml"
        file.write_text(text)
        said = Path(tempfile.mkdtemp(dir=root))
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # one that is ignored, as under nohup, would be for the child too
        with (said / "out").open("w") as out, (said / "err").open("w") as err:
            process = subprocess.Popen(
                [sys.executable, str(DRIVER), str(file), str(free_port()), *scene],
                env={**os.environ, "BIREME_RUN_DIR": str(root)},
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
        return cls(process, root, said)

    @property
    def directory(self) -> Path:
        return self.root / "demo"

    def content(self) -> dict[str, Any]:
        try:
            content: dict[str, Any] = json.loads((self.directory / "status.json").read_bytes())
        except FileNotFoundError:
            return {"status": {"groups": [], "conditions": []}, "local": {"pods": [], "routerPid": 0}}
        return content

    def groups(self) -> list[dict[str, Any]]:
        groups: list[dict[str, Any]] = self.content()["status"]["groups"]
        return groups

    def states(self) -> list[str]:
        return states(self.content())

    def pods(self) -> list[dict[str, Any]]:
        pods: list[dict[str, Any]] = self.content()["local"]["pods"]
        return pods

    def pod(self, stage: int) -> dict[str, Any]:
        return next(pod for pod in self.pods() if pod["stage"] == stage)

    def state_dir(self, pod: dict[str, Any]) -> Path:
        return self.directory / "pods" / f"{pod['group']}-{pod['stage']}-{pod['incarnation']}"

    def tell(self, pod: dict[str, Any], name: str, text: str) -> None:
        """Leave a word for a stage, whole as soon as it is there."""
        partial = self.state_dir(pod) / f".{name}.partial"
        partial.write_text(text)
        partial.rename(self.state_dir(pod) / name)

    def pids(self) -> list[int]:
        local = self.content()["local"]
        return [pid for pid in (local["routerPid"], *(pod["pid"] for pod in local["pods"])) if pid]

    def events(self) -> list[dict[str, Any]]:
        """What was told so far; a line that is being written is not yet told."""
        whole, _, _ = (self.directory / "events.jsonl").read_text().rpartition("\n")
        return [json.loads(line) for line in whole.splitlines()]

    def out(self) -> str:
        return (self.said / "out").read_text()

    def err(self) -> str:
        return (self.said / "err").read_text()

    def until(self, holds: Callable[[], bool]) -> None:
        """Wait until something holds, in one look."""
        looks = [False]

        def settled() -> bool:
            ended = self.process.poll() is not None
            looks.append(holds())
            return looks[-1] or ended

        wait_until(settled)
        assert looks[-1], f"{self.out()}{self.err()}"

    def until_content(self, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Wait until the status says so; returns what it said."""
        said: list[dict[str, Any]] = []

        def look() -> bool:
            said[:] = [self.content()]
            return holds(said[0])

        self.until(look)
        return said[0]

    def until_serving(self, groups: int = 1) -> dict[str, Any]:
        """Wait until so many groups serve and the router has a process."""
        return self.until_content(lambda said: states(said) == ["Serving"] * groups and said["local"]["routerPid"] > 0)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self) -> int:
        return self.process.wait(timeout=PATIENCE_S)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
