"""A running `bireme up` under test: start it, read its status, wait for what must come to pass, strike at its processes."""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

DRIVER = Path(__file__).with_name("driver.py")
PATIENCE_S = 30.0


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


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def alive(pid: int) -> bool:
    """Whether the process runs; a zombie, which only waits for its parent's attention, does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_until(holds: Callable[[], bool], limit_s: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.02)


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
        return [group["state"] for group in self.groups()]

    def pods(self) -> list[dict[str, Any]]:
        pods: list[dict[str, Any]] = self.content()["local"]["pods"]
        return pods

    def pod(self, stage: int) -> dict[str, Any]:
        return next(pod for pod in self.pods() if pod["stage"] == stage)

    def state_dir(self, pod: dict[str, Any]) -> Path:
        return self.directory / "pods" / f"{pod['group']}-{pod['stage']}-{pod['incarnation']}"

    def pids(self) -> list[int]:
        content = self.content()
        return [pid for pid in (content["local"]["routerPid"], *(pod["pid"] for pod in self.pods())) if pid]

    def out(self) -> str:
        return (self.said / "out").read_text()

    def err(self) -> str:
        return (self.said / "err").read_text()

    def until(self, holds: Callable[[], bool]) -> None:
        wait_until(lambda: holds() or self.process.poll() is not None)
        assert holds(), f"{self.out()}{self.err()}"

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self) -> int:
        return self.process.wait(timeout=PATIENCE_S)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
