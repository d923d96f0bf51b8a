"""Nodes whose kubelet has been silent for long, although what runs there may well serve: in the end a wish to leave.

Whoever serves without a kubelet is neither restarted nor probed, so it had better be elsewhere before it is needed.
Kubernetes says so by the condition Ready of the node, which is Unknown then; a pod that does not live any more is found
lost long before (see nodes.py). While most nodes are silent it is the control plane that is cut off, and nobody moves.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from bireme_operator.plan.observed import Leave
from bireme_operator.plan.places import tolerates

AFTER_S: Final = 120.0
"""A kubelet that is upgraded or restarted is back by then; other pods are evicted at 300 s, ours never."""
_KEEPS_OFF: Final[Mapping[str, Any]] = {
    "key": "node.kubernetes.io/unreachable",
    "value": "",
    "effect": "NoSchedule",
}
"""What Kubernetes puts on such a node."""


@dataclass
class Silence:
    """See the module. ``clock`` tells Unix seconds; after ``after_s`` a node is to be left, 0 for never."""

    clock: Callable[[], float]
    after_s: float = AFTER_S
    _nodes: set[str] = field(default_factory=set)
    _since: dict[str, float] = field(default_factory=dict)

    def see(self, node: Mapping[str, Any], *, gone: bool) -> bool:
        """Take a node; whether it fell silent or is heard again."""
        name, since = node["metadata"]["name"], None if gone else self._silent_since(node)
        (self._nodes.discard if gone else self._nodes.add)(name)
        if since is None:
            return self._since.pop(name, None) is not None
        known = name in self._since
        self._since.setdefault(name, since)
        return not known

    @property
    def nodes(self) -> Iterable[str]:
        """Those that are silent now, however long."""
        return self._since.keys()

    def leave(self, node: str) -> Leave | None:
        """Return why the pods of a node are to be had elsewhere, if they are."""
        since = self._since.get(node)
        if since is None or not self.after_s or self.clock() < since + self.after_s or self._most_are_silent():
            return None
        return Leave(f"its kubelet has been silent for {self.after_s:g} s and more", patient=True)

    def dues(self, nodes: Iterable[str]) -> Iterator[float]:
        """Yield when the pods of these nodes will be asked to leave."""
        if not self._since:
            return
        now = self.clock()
        ends = (self._since[node] + self.after_s for node in nodes if node in self._since)
        yield from (end for end in ends if end > now)

    def lures(self, tolerations: Sequence[Mapping[str, Any]]) -> frozenset[str]:
        """Return the silent nodes to which the scheduler would send such a pod, where nobody starts it."""
        return frozenset(self._since) if tolerates(_KEEPS_OFF, tolerations) else frozenset()

    def _silent_since(self, node: Mapping[str, Any]) -> float | None:
        """Since when the kubelet is silent by the word of the API server, which a new operator finds there as well."""
        for condition in (node.get("status") or {}).get("conditions") or ():
            if condition["type"] == "Ready" and condition["status"] == "Unknown":
                told = condition.get("lastTransitionTime")
                return min(self.clock(), datetime.fromisoformat(told).timestamp() if told else self.clock())
        return None

    def _most_are_silent(self) -> bool:
        return 2 * len(self._since) > len(self._nodes)
