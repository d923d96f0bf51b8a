"""What says by itself that a node or a pod will not last: taints of spot reclaimers, conditions of broken devices.

Unlike an ordinary taint, no toleration answers these: a pod that bears the taint goes with its machine all the same.
Administrators add their own by ``--leave-taint`` and ``--leave-condition``.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self

TAINTS: Final[Mapping[str, float]] = {
    "aws-node-termination-handler/spot-itn": 120.0,
    "aws-node-termination-handler/asg-lifecycle-termination": 120.0,
    "aws-node-termination-handler/scheduled-maintenance": 0.0,
    "aws-node-termination-handler/rebalance-recommendation": 0.0,
    "cloud.google.com/impending-node-termination": 30.0,
    "karpenter.sh/disrupted": 0.0,
    "ToBeDeletedByClusterAutoscaler": 0.0,
}
"""Keys of taints, and how many seconds the node has left then; 0: as many as it takes."""

CONDITIONS: Final[Mapping[str, tuple[str, float]]] = {
    "AcceleratedHardwareReady": ("False", 0.0),
    "DeviceUnhealthy": ("True", 0.0),
    "GPUMissing": ("True", 0.0),
    "GpuUnhealthy": ("True", 0.0),
    "NVLinkStatusInactive": ("True", 0.0),
    "XIDErrors": ("True", 0.0),
}
"""Types of node conditions, the status that is bad news, and how many seconds the node has left then."""

_DISRUPTED_S: Final = 30.0
"""Whoever marks a pod for its end deletes it in a moment."""


@dataclass(frozen=True)
class Signal:
    """``what`` in words, and how many seconds are left from when it is seen; 0: as many as it takes."""

    what: str
    notice_s: float = 0.0


@dataclass(frozen=True)
class Watched:
    """The taints and node conditions that are read so."""

    taints: Mapping[str, float] = field(default_factory=lambda: TAINTS)
    conditions: Mapping[str, tuple[str, float]] = field(default_factory=lambda: CONDITIONS)

    @classmethod
    def of(cls, taints: Iterable[str] = (), conditions: Iterable[str] = ()) -> Self:
        """Return those that are known and these: ``KEY[:SECONDS]`` and ``TYPE[=STATUS][:SECONDS]``.

        Raises:
            ValueError: one is not written like that; the message names it.
        """
        own = dict(map(_parted, taints))
        kinds = {}
        for written, notice_s in map(_parted, conditions):
            kind, _, status = written.partition("=")
            if not kind or status not in {"", "True", "False", "Unknown"}:
                raise ValueError(f"{written}: write TYPE, TYPE=True, TYPE=False or TYPE=Unknown")
            kinds[kind] = (status or "True", notice_s)
        return cls({**TAINTS, **own}, {**CONDITIONS, **kinds})

    def on(self, node: Mapping[str, Any]) -> Iterator[Signal]:
        """Read them off a node."""
        for taint in (node.get("spec") or {}).get("taints") or ():
            if taint["key"] in self.taints:
                yield Signal(f"taint {taint['key']}", self.taints[taint["key"]])
        for condition in (node.get("status") or {}).get("conditions") or ():
            status, notice_s = self.conditions.get(condition["type"], ("", 0.0))
            if condition.get("status") == status:
                yield Signal(f"condition {condition['type']} is {status}", notice_s)


def of_pod(pod: Mapping[str, Any]) -> Signal | None:
    """Return what a pod itself says: it is to be ended, or one of its devices is broken."""
    disrupted = disruption_of(pod)
    if disrupted:
        return Signal(disrupted, _DISRUPTED_S)
    status = pod.get("status") or {}
    for container in status.get("containerStatuses") or ():
        for resource in container.get("allocatedResourcesStatus") or ():
            for device in resource.get("resources") or ():
                if device.get("health") == "Unhealthy":
                    return Signal(f"device {device.get('resourceID', '')} of {resource.get('name', '')} is unhealthy")
    return None


def disruption_of(pod: Mapping[str, Any]) -> str:
    """Return why somebody ends the pod, by its condition DisruptionTarget; nothing where nobody said so."""
    for condition in (pod.get("status") or {}).get("conditions") or ():
        if condition.get("type") == "DisruptionTarget" and condition.get("status") == "True":
            return f"{condition.get('reason', '')}: {condition.get('message', '')}".strip(": ")
    return ""


def _parted(written: str) -> tuple[str, float]:
    name, colon, seconds = written.rpartition(":")
    if not colon:
        return written, 0.0
    if not name or not seconds.isdecimal():
        raise ValueError(f"{written}: write NAME or NAME:SECONDS")
    return name, float(seconds)
