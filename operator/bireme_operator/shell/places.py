"""Which nodes have room for what: read live when a group waits for a place, and not again within a moment.

All pods of the cluster count: ours, which are watched, and those of others, which are read. What was given away but
does not show yet is held for a while, so that two deployments that are placed at the same time get no room twice.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from bireme.names import Label
from bireme_operator.kube.client import Kube
from bireme_operator.kube.errors import KubeError
from bireme_operator.kube.resources import NODES, PODS
from bireme_operator.plan.places import HOSTNAME, Needs, NodeView
from bireme_operator.plan.quantities import Amounts, amounts, total
from bireme_operator.shell.records import ENDED
from bireme_operator.shell.requests import requests_of
from bireme_operator.shell.store import Store

log = logging.getLogger(__name__)

_FRESH_S: Final = 1.0
_SHARE: Final = 0.1
"""A look at a large cluster takes its time, and most of it the API server's: at most this share of it is spent so."""
_HELD_S: Final = 30.0


@dataclass
class Places:
    """All nodes, for all deployments."""

    kube: Kube
    clock: Callable[[], float]
    store: Store | None = None
    """Has our own pods, if somebody watches them: then all are read once, and from then on those of others."""
    _complete: bool = False
    _nodes: tuple[NodeView, ...] = ()
    _by_host: Mapping[str | None, str] = field(default_factory=dict)
    _used: set[str] = field(default_factory=set)
    _read_at: float = float("-inf")
    _took_s: float = 0.0
    _held: dict[str, tuple[float, str, Amounts]] = field(default_factory=dict)
    _reading: asyncio.Lock = field(default_factory=asyncio.Lock)
    _refreshing: "asyncio.Task[None] | None" = None

    async def look(self) -> tuple[NodeView, ...]:
        """Return the nodes that take pods, with what is free on them: as it was a moment ago, not long ago."""
        if self.clock() - self._read_at >= 2 * self._fresh_s:
            await self._refresh()
        self.expect()
        now, used = self.clock(), self._used_by_us()
        shown = self._used | {pod for pods in used.values() for pod in pods}
        done = {pod for pod in self._held if pod in shown or (self.store is not None and self.store.is_gone(pod))}
        self._held = {pod: held for pod, held in self._held.items() if held[0] > now and pod not in done}
        return self._without(used)

    def expect(self) -> None:
        """Begin to read what a look in a moment will want to know, unless it is known well enough."""
        if self.clock() - self._read_at >= self._fresh_s and self._refreshing is None:
            self._refreshing = asyncio.get_running_loop().create_task(self._refresh_beside())

    @property
    def _fresh_s(self) -> float:
        return max(_FRESH_S, self._took_s / _SHARE)

    def hold(self, pod_uid: str, node: str, needs: Needs) -> None:
        """Count a pod that was let go for ``node`` as there until it shows."""
        self._held[pod_uid] = (self.clock() + _HELD_S, node, needs.requests)

    def _used_by_us(self) -> dict[str, dict[str, Amounts]]:
        """Return what our own pods take or are let go for, by node and pod."""
        used: dict[str, dict[str, Amounts]] = {}
        for record in self.store.everything() if self.store is not None else ():
            view = record.view
            place = view.node or ("" if view.gated else self._by_host.get(view.aim, ""))
            if place and not record.ended:
                used.setdefault(place, {})[record.uid] = record.requests
        return used

    def _without(self, used: Mapping[str, Mapping[str, Amounts]]) -> tuple[NodeView, ...]:
        """Return the nodes without what is used there by us, or held."""
        taken = {node: [_less(amount) for amount in pods.values()] for node, pods in used.items()}
        for _, node, amount in self._held.values():
            taken.setdefault(node, []).append(_less(amount))
        return tuple(
            replace(node, free=total([node.free, *taken[node.name]])) if node.name in taken else node
            for node in self._nodes
        )

    async def _refresh_beside(self) -> None:
        """Read while others go on with what is known; who fails leaves it to the next look to ask and to fail."""
        try:
            await self._refresh()
        except KubeError as error:
            log.info("free places can't be read: %s", error)
        finally:
            self._refreshing = None

    async def _refresh(self) -> None:
        async with self._reading:
            began = self.clock()
            if began - self._read_at >= self._fresh_s:
                await self._read()
                self._took_s = self.clock() - began

    async def _read(self) -> None:
        selector = f"!{Label.STAGE}" if self._complete else ""
        nodes, pods = await asyncio.gather(self.kube.list(NODES, None), self.kube.list(PODS, None, selector))
        by_node: dict[str, list[Amounts]] = {}
        self._used = set()
        self._by_host = {(node["metadata"].get("labels") or {}).get(HOSTNAME): _name(node) for node in nodes["items"]}
        for pod in pods["items"]:
            if self.store is not None and Label.STAGE in (pod["metadata"].get("labels") or {}):
                self.store.see_pod(pod)  # the watch may still be behind, as it is when the operator begins
                continue
            place = _place(pod, self._by_host)
            if place and (pod.get("status") or {}).get("phase") not in ENDED:
                by_node.setdefault(place, []).append(_less(requests_of(pod["spec"])))
                self._used.add(pod["metadata"]["uid"])
        self._nodes = tuple(_view(node, by_node.get(_name(node), [])) for node in nodes["items"] if _takes_pods(node))
        self._complete = self.store is not None
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


def _place(pod: Mapping[str, Any], by_host: Mapping[str | None, str]) -> str:
    """Return the node of a pod, or the one that it was let go for."""
    spec = pod["spec"]
    aimed = by_host.get((spec.get("nodeSelector") or {}).get(HOSTNAME, ""), "")
    return str(spec.get("nodeName") or ("" if spec.get("schedulingGates") else aimed))


def _view(node: Mapping[str, Any], used: list[Amounts]) -> NodeView:
    allocatable = amounts((node.get("status") or {}).get("allocatable") or {})
    spec = node.get("spec") or {}
    return NodeView(
        _name(node), node["metadata"].get("labels") or {}, total([allocatable, *used]), spec.get("taints") or ()
    )


def _less(amount: Amounts) -> dict[str, int]:
    """Return what a pod takes away from its node, one place for a pod included."""
    return {**{name: -value for name, value in amount.items()}, "pods": -1000}


def _takes_pods(node: Mapping[str, Any]) -> bool:
    conditions = {one["type"]: one["status"] for one in (node.get("status") or {}).get("conditions") or ()}
    return not (node.get("spec") or {}).get("unschedulable") and conditions.get("Ready") == "True"


def _name(node: Mapping[str, Any]) -> str:
    return str(node["metadata"]["name"])
