"""Who is who in a running deployment: every process by its role, found where a user would look.

Ranks come from the leader's state document, supervisors and the router from status.json, the rest from /proc by their
command and parent. A part that is gone between two looks is simply absent.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from bireme.names import Env
from tests.support.deployment import Deployment, parent_of, processes_with


@dataclass(frozen=True)
class Part:
    """One process. ``role``: rank, spare, supervisor, coordinator, http or router; -1 where a number says nothing."""

    role: str
    pid: int
    group: int = -1
    stage: int = -1
    rank: int = -1

    def __str__(self) -> str:
        numbers = ((self.group, "group"), (self.stage, "stage"), (self.rank, "rank"))
        place = " ".join(f"{name} {number}" for number, name in numbers if number >= 0)
        return f"{self.role} {place} (pid {self.pid})"


_MODULES = {
    "bireme_worker.rank.main": "rank",
    "bireme_worker.coordinator.main": "coordinator",
    "bireme_worker.http.main": "http",
}


def parts(deployment: Deployment) -> list[Part]:
    """All processes of the deployment but `bireme up` itself."""
    local = deployment.status()["local"]
    pods = {pod["pid"]: pod for pod in local["pods"] if pod["pid"]}
    found = [Part("supervisor", pid, pod["group"], pod["stage"]) for pid, pod in pods.items()]
    if local["routerPid"]:
        found.append(Part("router", local["routerPid"]))
    return found + list(_children(deployment, pods))


def _children(deployment: Deployment, pods: dict[int, dict[str, Any]]) -> Iterator[Part]:
    for pid, text in processes_with(f"{Env.RUN_DIR}={deployment.run_dir}"):
        words = text.split()
        role = next((role for module, role in _MODULES.items() if module in words), None)
        with contextlib.suppress(OSError):
            parent = parent_of(pid)
            if role is not None and parent in pods:
                pod = pods[parent]
                yield _child(role, pid, pod, words)


def _child(role: str, pid: int, pod: dict[str, Any], words: list[str]) -> Part:
    if role != "rank":
        return Part(role, pid, pod["group"], pod["stage"])
    rank = rank_number(pid, words, pod["address"])
    return Part("rank" if rank >= 0 else "spare", pid, pod["group"], pod["stage"], rank)


def rank_number(pid: int, words: list[str], address: str) -> int:
    """By its command, or for a former spare by the data port on which it listens; -1: a spare."""
    if "--rank" in words:
        return int(words[words.index("--rank") + 1])
    for port in listening(pid, address):
        return port - 8010
    return -1


def listening(pid: int, address: str) -> list[int]:
    """TCP ports on ``address`` on which the process listens."""
    inodes = set()
    with contextlib.suppress(OSError):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                inodes.add(str(link.readlink()).removeprefix("socket:[").removesuffix("]"))
    host = "".join(f"{int(part):02X}" for part in reversed(address.split(".")))
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return [int(row[1][9:], 16) for row in rows if row[3] == "0A" and row[9] in inodes and row[1].startswith(host)]


def one(found: list[Part], role: str, **place: int) -> Part:
    """The first part of this role at this place, for example ``one(all, "rank", stage=1)``."""
    return next(
        part for part in found if part.role == role and all(getattr(part, key) == value for key, value in place.items())
    )


def address_of(deployment: Deployment, group: int, stage: int) -> str:
    """Address of the current pod of that stage."""
    pods = deployment.status()["local"]["pods"]
    wanted = [pod for pod in pods if (pod["group"], pod["stage"]) == (group, stage) and pod["phase"] == "Running"]
    return str(max(wanted, key=lambda pod: int(pod["incarnation"]))["address"])


def gauges(deployment: Deployment, group: int) -> dict[str, float]:
    """The metrics without labels of the leader of ``group``."""
    text = httpx.get(f"{deployment.route(group).admin}/metrics", timeout=30).text
    lines = [line.split() for line in text.splitlines() if line and not line.startswith("#") and "{" not in line]
    return {name: float(value) for name, value in lines}
