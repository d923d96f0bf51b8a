"""A whole simulated cluster around the planner: racks of nodes, a scheduler, kubelets, pods that linger, nodes that die."""

from dataclasses import dataclass, field, replace
from typing import Final

from bireme_operator.plan.actions import CreatePod, CreateSpare, DeletePod, LiftGate
from bireme_operator.plan.observed import Leave, Observed, Phase, PodView
from bireme_operator.plan.places import HOSTNAME, Needs, NodeView
from bireme_operator.plan.plan import Plan
from bireme_operator.plan.providers import Gang
from bireme_operator.plan.quantities import amounts
from tests.planner.world import Luck, World

RACK: Final = "topology.kubernetes.io/rack"
GPU: Final = "nvidia.com/gpu"
NEEDS: Final = Needs(amounts({GPU: 1}))
LOST_AFTER_S: Final = 20.0


@dataclass
class Cluster(World):
    """``slots`` has how many stages each node takes; ``dead`` since when a node is; others hold ``foreign`` slots.

    A ``silent`` node has no kubelet that acts; what runs there runs on.
    ``epochs`` are the epochs that were served, by group index, in the order in which they were first seen.
    """

    slots: dict[str, int] = field(default_factory=dict)
    racks: dict[str, str] = field(default_factory=dict)
    dead: dict[str, float] = field(default_factory=dict)
    cordoned: set[str] = field(default_factory=set)
    silent: set[str] = field(default_factory=set)
    foreign: dict[str, int] = field(default_factory=dict)
    epochs: dict[int, list[int]] = field(default_factory=dict)

    def add_node(self, slots: int, rack: str) -> None:
        name = f"n{len(self.slots)}"
        self.slots[name], self.racks[name] = slots, rack

    def reachable(self, pod: PodView) -> bool:
        return super().reachable(pod) and pod.node not in self.dead

    def observe(self) -> Observed:
        seen = super().observe()
        for group, view in seen.leaders.items():
            served = self.epochs.setdefault(group, [])
            if view.document.state == "Serving" and view.document.epoch not in served:
                served.append(view.document.epoch)
        gated = any(pod.gated for pod in self.pods.values())
        return replace(
            seen,
            pods=tuple(
                replace(pod, node_lost=self._lost(pod.node), **self._leaving(pod.node))  # type: ignore[arg-type]
                for pod in self.pods.values()
            ),
            nodes=self._nodes() if gated else None,
            needs=NEEDS,
            labels={name: {HOSTNAME: name, RACK: rack} for name, rack in self.racks.items()},
        )

    def visit(self, luck: Luck) -> Plan:
        result = super().visit(luck)
        self.tick()
        return result

    def apply(self, action: object) -> None:
        match action:
            case LiftGate() if action.pod in self.pods:
                self.pods[action.pod] = replace(self.pods[action.pod], gated=False, aim=action.hostname)
            case DeletePod() if action.name in self.pods:
                self.deleted.append(action)
                self.wake_up.pop(action.name, None)
                gone = {"deleting": True, "end_by": self.now + action.grace_s}
                self.pods[action.name] = replace(self.pods[action.name], **gone)  # type: ignore[arg-type]
            case CreatePod():
                super().apply(action)
                waits = {"phase": Phase.PENDING, "told_leader": 0, "gated": self.desired.gang is Gang.GATES}
                self.pods[action.name] = replace(self.pods[action.name], **waits)  # type: ignore[arg-type]
            case CreateSpare():
                super().apply(action)
                self.spares[action.name] = replace(self.spares[action.name], node="apart")
            case _:
                super().apply(action)

    def tick(self) -> None:
        """What scheduler and kubelets do between two visits."""
        for name, pod in sorted(self.pods.items()):
            if pod.deleting and self._acts(pod.node):
                self.vanish(name)
            elif pod.phase is Phase.PENDING and not pod.gated and not pod.deleting:
                node = pod.node or self._place(pod)
                if node and self._acts(node):
                    runs = {"phase": Phase.RUNNING, "started_at": self.now, "unplaced": False}
                    self.pods[name] = replace(pod, node=node, **runs)  # type: ignore[arg-type]
                elif not node:
                    self.pods[name] = replace(pod, unplaced=True)

    def fail(self, node: str) -> None:
        self.dead.setdefault(node, self.now)

    def give_back(self, node: str) -> None:
        """The node returns; what is still wanted on it goes on."""
        self.dead.pop(node, None)

    def free(self, node: str) -> int:
        return self.slots[node] - self.foreign.get(node, 0) - sum(pod.node == node for pod in self.pods.values())

    def halves(self) -> set[int]:
        """Groups of which some stages hold devices, although others have no node."""
        living = [pod for pod in self.pods.values() if not pod.deleting]
        groups = {pod.group for pod in living}
        return {group for group in groups if len({pod.node != "" for pod in living if pod.group == group}) == 2}

    def _place(self, pod: PodView) -> str:
        names = [pod.aim] if pod.aim else sorted(self.slots)
        open_ = [name for name in names if self._acts(name) and name not in self.cordoned]
        return next((name for name in open_ if self.free(name) > 0), "")

    def _acts(self, node: str) -> bool:
        """Whether there is a kubelet."""
        return node not in self.dead and node not in self.silent

    def _leaving(self, node: str) -> dict[str, object]:
        """Why the pods of a node are to leave it; of the silent ones nobody is asked while most nodes are silent."""
        asked = node in self.silent and 2 * len(self.silent) <= len(self.slots)
        cordoned = node in self.cordoned
        leave = Leave("silent", patient=True) if asked and not cordoned else Leave()
        return {"node_leaving": cordoned or asked, "leave": leave}

    def _lost(self, node: str) -> bool:
        return node in self.dead and self.now - self.dead[node] >= LOST_AFTER_S

    def _nodes(self) -> tuple[NodeView, ...]:
        """The nodes that take pods; what was let go for one is counted there."""
        aimed = [pod.aim for pod in self.pods.values() if pod.aim and not pod.node and not pod.gated]
        return tuple(
            NodeView(
                name,
                {HOSTNAME: name, RACK: self.racks[name]},
                {GPU: 1000 * (self.free(name) - aimed.count(name)), "pods": 99000},
            )
            for name in sorted(self.slots)
            if self._acts(name) and name not in self.cordoned
        )
