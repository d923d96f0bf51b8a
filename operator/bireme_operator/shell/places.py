"""Which nodes have room for what: read live when a group waits for a place, and not again within a moment.

All pods of the cluster count, ours or not. What was given away but does not show yet is held for a while, so that two
deployments that are placed at the same time do not get the same room.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from bireme_operator.kube.client import Kube
from bireme_operator.kube.resources import NODES, PODS
from bireme_operator.plan.places import HOSTNAME, Needs, NodeView
from bireme_operator.plan.quantities import Amounts, amounts, total

_FRESH_S: Final = 1.0
_SHARE: Final = 0.1
"""A look at a large cluster takes its time, and most of it the API server's: at most this share of it is spent so."""
_HELD_S: Final = 30.0
_ENDED: Final = ("Failed", "Succeeded")


@dataclass
class Places:
    """All nodes, for all deployments."""

    kube: Kube
    clock: Callable[[], float]
    _nodes: tuple[NodeView, ...] = ()
    _used: set[str] = field(default_factory=set)
    _read_at: float = float("-inf")
    _took_s: float = 0.0
    _held: dict[str, tuple[float, str, Amounts]] = field(default_factory=dict)
    _reading: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def look(self) -> tuple[NodeView, ...]:
        """Return the nodes that take pods, with what is free on them."""
        async with self._reading:
            began = self.clock()
            if began - self._read_at >= max(_FRESH_S, self._took_s / _SHARE):
                await self._read()
                self._took_s = self.clock() - began
        now = self.clock()
        self._held = {pod: held for pod, held in self._held.items() if held[0] > now and pod not in self._used}
        return self._without_held()

    def hold(self, pod_uid: str, node: str, needs: Needs) -> None:
        """Count a pod that was let go for ``node`` as there until it shows."""
        self._held[pod_uid] = (self.clock() + _HELD_S, node, needs.requests)

    def _without_held(self) -> tuple[NodeView, ...]:
        held: dict[str, list[Amounts]] = {}
        for _, node, amount in self._held.values():
            held.setdefault(node, []).append({name: -amount for name, amount in (*amount.items(), ("pods", 1000))})
        return tuple(
            replace(node, free=total([node.free, *held[node.name]])) if node.name in held else node
            for node in self._nodes
        )

    async def _read(self) -> None:
        nodes, pods = await asyncio.gather(self.kube.list(NODES, None), self.kube.list(PODS, None))
        by_node: dict[str, list[Amounts]] = {}
        self._used = set()
        by_host = {(node["metadata"].get("labels") or {}).get(HOSTNAME): _name(node) for node in nodes["items"]}
        for pod in pods["items"]:
            place = _place(pod, by_host)
            if place and (pod.get("status") or {}).get("phase") not in _ENDED:
                by_node.setdefault(place, []).append({**requests_of(pod["spec"]), "pods": 1000})
                self._used.add(pod["metadata"]["uid"])
        self._nodes = tuple(_view(node, by_node.get(_name(node), [])) for node in nodes["items"] if _takes_pods(node))
        self._read_at = self.clock()


def needs_of(pod: Mapping[str, Any]) -> Needs:
    """Return what a rendered pod asks of its node."""
    spec = pod["spec"]
    affinity = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    ) or {}
    return Needs(
        requests_of(spec),
        spec.get("nodeSelector") or {},
        tuple(affinity.get("nodeSelectorTerms") or ()),
        tuple(spec.get("tolerations") or ()),
    )


def requests_of(spec: Mapping[str, Any]) -> dict[str, int]:
    """Return what a pod requests: all containers together, or the largest init container where that is more."""
    running = total(_requests(container) for container in spec.get("containers") or ())
    for container in spec.get("initContainers") or ():
        running |= {name: max(amount, running.get(name, 0)) for name, amount in _requests(container).items()}
    return total([running, amounts(spec.get("overhead") or {})])


def _requests(container: Mapping[str, Any]) -> dict[str, int]:
    resources = container.get("resources") or {}
    return amounts({**(resources.get("limits") or {}), **(resources.get("requests") or {})})


def _place(pod: Mapping[str, Any], by_host: Mapping[str | None, str]) -> str:
    """Return the node of a pod, or the one that it was let go for."""
    spec = pod["spec"]
    aimed = by_host.get((spec.get("nodeSelector") or {}).get(HOSTNAME, ""), "")
    return str(spec.get("nodeName") or ("" if spec.get("schedulingGates") else aimed))


def _view(node: Mapping[str, Any], used: list[Amounts]) -> NodeView:
    allocatable = amounts((node.get("status") or {}).get("allocatable") or {})
    taken = {name: -amount for name, amount in total(used).items()}
    spec = node.get("spec") or {}
    return NodeView(
        _name(node), node["metadata"].get("labels") or {}, total([allocatable, taken]), spec.get("taints") or ()
    )


def _takes_pods(node: Mapping[str, Any]) -> bool:
    conditions = {one["type"]: one["status"] for one in (node.get("status") or {}).get("conditions") or ()}
    return not (node.get("spec") or {}).get("unschedulable") and conditions.get("Ready") == "True"


def _name(node: Mapping[str, Any]) -> str:
    return str(node["metadata"]["name"])
