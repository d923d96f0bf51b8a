"""What outlives a kubelet: a node's sandboxes, their containers and processes, as containerd keeps them.

A kubelet that is started again finds its pods here and touches none of them; a node that comes back after its power was
gone finds the files, but no process and no address.
"""

import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path
from signal import SIGCONT, SIGKILL, SIGSTOP
from typing import Final

from tests.fleet.api import Object
from tests.fleet.processes import Process, marked, signal_all, state
from tests.fleet.settings import Addresses, Settings

_UNKNOWN: Final = "ContainerCreating"


@dataclass(frozen=True)
class Ended:
    """How a container ended."""

    code: int
    started_at: float
    finished_at: float
    message: str = ""


@dataclass
class Container:
    """One container of a pod through all its restarts."""

    spec: Object
    process: Process | None = None
    started_at: float = 0.0
    starts: int = 0
    ended: Ended | None = None
    """The last end; the current state when no process runs."""
    waiting: str = _UNKNOWN
    message: str = ""
    started: bool = False
    ready: bool = False
    delay_s: float = 0.0
    """What the next restart but one waits for."""

    @property
    def name(self) -> str:
        return str(self.spec["name"])

    @property
    def runs(self) -> bool:
        return self.process is not None and self.process.lives

    def finish(self, code: int, message: str) -> None:
        """Note the end of the process."""
        self.ended = Ended(code, self.started_at, time.time(), message)
        self.process, self.ready, self.started = None, False, False
        self.waiting = ""

    def next_delay(self, settings: Settings) -> float:
        """Return how long after its end the container starts again, and double what comes next."""
        assert self.ended is not None
        if self.ended.finished_at - self.ended.started_at > 2 * settings.crash_limit_seconds:
            self.delay_s = 0.0
        delay = self.delay_s
        self.delay_s = min(settings.crash_limit_seconds, 2 * delay or settings.crash_base_seconds)
        return delay


@dataclass
class Sandbox:
    """A pod on a node."""

    uid: str
    namespace: str
    name: str
    root: Path
    logs: Path
    ip: str
    mark: str
    started_at: float = field(default_factory=time.time)
    volumes: dict[str, Path] = field(default_factory=dict)
    containers: dict[str, Container] = field(default_factory=dict)
    init: dict[str, Container] = field(default_factory=dict)
    conditions: dict[str, tuple[str, float]] = field(default_factory=dict)

    def all(self) -> list[Container]:
        """Init containers first."""
        return [*self.init.values(), *self.containers.values()]

    def log(self, container: str) -> Path:
        """Where the output of all starts of a container goes."""
        return self.logs / f"{self.name}_{self.uid[:8]}_{container}.log"

    def pids(self) -> list[int]:
        """Every living process of the pod."""
        return marked(f"{self.mark}/")


class Runtime:
    """All sandboxes of one node."""

    def __init__(self, node: str, settings: Settings, addresses: Addresses) -> None:
        self.node = node
        self.settings = settings
        self._addresses = addresses
        self.sandboxes: dict[str, Sandbox] = {}

    def sandbox(self, pod: Object) -> Sandbox:
        """Return the pod's sandbox, made now if there is none."""
        metadata, spec = pod["metadata"], pod["spec"]
        uid = metadata["uid"]
        if uid not in self.sandboxes:
            root = self.settings.root / self.node / uid[:8]
            root.mkdir(parents=True, exist_ok=True)
            owner = (uid, metadata["namespace"], metadata["name"])
            made = Sandbox(*owner, root, self.settings.logs, self._addresses.take(), f"{self.node}/{uid}")
            made.containers = {each["name"]: Container(each) for each in spec["containers"]}
            made.init = {each["name"]: Container(each) for each in spec.get("initContainers", [])}
            self.sandboxes[uid] = made
        return self.sandboxes[uid]

    def remove(self, uid: str) -> None:
        """Forget a pod and its volumes; its logs stay for the test's reader."""
        sandbox = self.sandboxes.pop(uid, None)
        if sandbox is not None:
            signal_all(f"{sandbox.mark}/", SIGKILL)
            shutil.rmtree(sandbox.root / "v", ignore_errors=True)

    def stop(self) -> None:
        """Stop every process of the node where it is."""
        signal_all(f"{self.node}/", SIGSTOP)

    def is_dead(self) -> bool:
        """Whether no process is left: one that waits for a disk ends later than others."""
        return not marked(f"{self.node}/")

    def stands_still(self) -> bool:
        """Whether every process has stopped: each does in its own time, one that waits for a disk later than others."""
        return all(state(pid) in "TXZ" for pid in marked(f"{self.node}/"))

    def resume(self) -> None:
        """Let every process of the node go on."""
        signal_all(f"{self.node}/", SIGCONT)

    async def lose(self) -> None:
        """End every process of the node, as a cut of its power does; pods get other addresses after it."""
        signal_all(f"{self.node}/", SIGKILL)
        for sandbox in self.sandboxes.values():
            for container in sandbox.all():
                if container.process is not None:
                    container.process.kill()
                    await container.process.wait()
                container.ready = container.started = False
            sandbox.ip = self._addresses.take()
            sandbox.init = {name: Container(each.spec) for name, each in sandbox.init.items()}
