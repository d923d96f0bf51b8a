"""What benchmarks/operator_scale.py reads off the machine: CPU time by process, memory, and whose time a recovery was.

The API server's audit log has when each request came and when it was answered. What lies between two requests of the
operator is the operator's; a request takes as long as the server, with all others that it serves, lets it take.
"""

import os
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from bireme.names import Label

_TICKS: Final = os.sysconf("SC_CLK_TCK")
_ANSWERED: Final = "ResponseComplete"


@dataclass
class Meter:
    """CPU time of some processes between two looks, in seconds; ``others_s`` is that of all other processes."""

    processes: Mapping[str, int]
    took_s: float = 0.0
    others_s: float = 0.0
    _all_before: float = 0.0
    _began: float = 0.0
    _before: dict[str, float] = field(default_factory=dict)

    def start(self) -> None:
        """Begin to count."""
        self._began = time.monotonic()
        self._all_before = _all_cpu_s()
        self._before = {name: _cpu_s(pid) for name, pid in self.processes.items()}

    def read(self) -> dict[str, float]:
        """CPU seconds of each since `start`."""
        self.took_s = time.monotonic() - self._began
        spent = {name: _cpu_s(pid) - self._before[name] for name, pid in self.processes.items()}
        self.others_s = max(_all_cpu_s() - self._all_before - sum(spent.values()), 0.0)
        return spent


def peak_rss_mb(pid: int) -> float:
    """The most memory that a process has had."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def _all_cpu_s() -> float:
    user, nice, system, _, _, *interrupts = map(int, Path("/proc/stat").read_text().splitlines()[0].split()[1:9])
    return (user + nice + system + sum(interrupts)) / _TICKS


class Replaced(NamedTuple):
    """A lost pod, from the moment the server has ended it to the one when it has made the successor, in seconds.

    ``server_s`` of that at least one of the requests that the operator waited for was with the API server;
    ``operator_s`` is the rest: news on their way, the visit that began before, plans, waits for a core.
    """

    operator_s: float
    server_s: float


class _Ref(msgspec.Struct):
    resource: str = ""
    name: str = ""
    subresource: str = ""


class _Line(msgspec.Struct, rename="camel"):
    stage: str
    verb: str
    request_received_timestamp: datetime
    stage_timestamp: datetime
    request_uri: str = msgspec.field(name="requestURI")
    object_ref: _Ref = msgspec.field(default_factory=_Ref)


def replaced(audit: Path, offset: int, victim: str, successor: str, group: str) -> Replaced:
    """Find in the audit log, from ``offset`` on, whose time the recovery of ``group`` was."""
    lines = [one for one in _read(audit, offset) if one.stage == _ANSWERED]
    lost = next(one for one in lines if one.verb == "delete" and one.object_ref.name == victim)
    made = next(one for one in lines if one.verb == "create" and one.object_ref.name == successor)
    began, ended = lost.stage_timestamp, made.stage_timestamp
    asked = [one for one in lines if one is made or _is_awaited(one, group)]
    spans = ((max(one.request_received_timestamp, began), min(one.stage_timestamp, ended)) for one in asked)
    server = _union((first.timestamp(), last.timestamp()) for first, last in spans if first < last)
    return Replaced((ended - began).total_seconds() - server, server)


def _read(audit: Path, offset: int) -> Iterator[_Line]:
    decoder = msgspec.json.Decoder(_Line)
    with audit.open("rb") as log:
        log.seek(offset)
        yield from (decoder.decode(line) for line in log if line.endswith(b"\n"))


def _is_awaited(line: _Line, group: str) -> bool:
    """Whether a visit waits for this before it makes a pod of the group anew: the live look, and the intent."""
    looks = line.verb == "list" and f"{Label.GROUP_INDEX}+in+({group})" in line.request_uri
    keeps = (
        line.verb == "patch" and line.object_ref.subresource == "status" and "inferencedeployments" in line.request_uri
    )
    return looks or keeps


def _union(spans: Iterable[tuple[float, float]]) -> float:
    total, until = 0.0, float("-inf")
    for first, last in sorted(spans):
        total += max(last - max(first, until), 0.0)
        until = max(until, last)
    return total
