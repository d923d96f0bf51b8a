"""What the pods of one InferenceDeployment say about its leaders; pure.

Only stage 0 speaks for a group, and only a pod that its kubelet runs under an address of its own. The pod's uid is part
of the target's name: a pod of the same name at another address is another target, with no failure of the old one.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from bireme.names import Label, Port
from bireme.wire.routes import Route

ZONE: Final = "topology.kubernetes.io/zone"
LEADER: Final = "leader"
ROUTER: Final = "router"
_RUNNING: Final = "Running"


class _Reference(msgspec.Struct):
    uid: str
    controller: bool = False


class _Metadata(msgspec.Struct, rename="camel"):
    name: str = ""
    uid: str = ""
    resource_version: str = ""
    labels: dict[str, str] = {}
    deletion_timestamp: str | None = None
    owner_references: list[_Reference] = []


class _Condition(msgspec.Struct):
    type: str
    status: str


class _Status(msgspec.Struct, rename="camel"):
    phase: str = ""
    pod_ip: str = msgspec.field(name="podIP", default="")
    conditions: list[_Condition] = []


class _Gate(msgspec.Struct, rename="camel"):
    condition_type: str


class _Spec(msgspec.Struct, rename="camel"):
    readiness_gates: list[_Gate] = []


class Pod(msgspec.Struct):
    """The part of a pod that counts here."""

    spec: _Spec = msgspec.field(default_factory=_Spec)
    metadata: _Metadata = msgspec.field(default_factory=_Metadata)
    status: _Status = msgspec.field(default_factory=_Status)


class Leader(NamedTuple):
    """One group's leader. ``leaving``: its pod is being deleted; ``ready``: kubelet and readiness gates say so."""

    route: Route
    leaving: bool
    ready: bool


def selector(deployment: str, role: str) -> str:
    """The label selector of the pods of a deployment with this role: leader or router."""
    return f"{Label.DEPLOYMENT}={deployment},{Label.ROLE}={role}"


def addresses(pods: Iterable[Pod]) -> list[str]:
    """Where pods can be spoken to that are there to stay."""
    return [
        pod.status.pod_ip
        for pod in pods
        if pod.status.phase == _RUNNING and pod.status.pod_ip and pod.metadata.deletion_timestamp is None
    ]


def leaders_of(pods: Iterable[Pod], tokens: Path) -> list[Leader]:
    """The leaders among the pods; ``tokens`` is the directory with the group tokens by index."""
    return [leader for pod in pods if (leader := _leader(pod, tokens)) is not None]


def _leader(pod: Pod, tokens: Path) -> Leader | None:
    meta, status = pod.metadata, pod.status
    index, incarnation = (meta.labels.get(label, "") for label in (Label.GROUP_INDEX, Label.INCARNATION))
    owner = next((reference.uid for reference in meta.owner_references if reference.controller), "")
    sound = owner and index.isdecimal() and incarnation.isdecimal() and meta.labels.get(Label.STAGE) == "0"
    if not sound or status.phase != _RUNNING or not status.pod_ip:
        return None
    host = f"[{status.pod_ip}]" if ":" in status.pod_ip else status.pod_ip
    route = Route(
        group=f"{owner}-{index}",
        index=int(index),
        pod=f"{meta.name}/{meta.uid}",
        incarnation=int(incarnation),
        http=f"http://{host}:{int(Port.HTTP)}",
        admin=f"http://{host}:{int(Port.ADMIN)}",
        token_file=str(tokens / index),
        zone=meta.labels.get(ZONE, ""),
    )
    return Leader(route, meta.deletion_timestamp is not None, _ready(pod))


def _ready(pod: Pod) -> bool:
    """By the containers and the gates: a node controller that lost a kubelet calls pods unready that serve."""
    said = {one.type: one.status for one in pod.status.conditions}
    gates = [gate.condition_type for gate in pod.spec.readiness_gates]
    return said.get("ContainersReady", said.get("Ready")) == "True" and all(said.get(gate) == "True" for gate in gates)
