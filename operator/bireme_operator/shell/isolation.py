"""Stages that nobody of their group has heard for long although their kubelet is: their node has lost its peers.

It is not lost, as its Lease is renewed, and nobody is made anew at once: a switch may be mended in a minute, and then
all go on with the weights that they have. But no group waits for it for ever: in the end it is a wish to leave, like a
silent kubelet (silence.py). While it is most of a deployment's nodes the fault is elsewhere, and nobody moves.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from bireme_operator.plan.memory import GroupMemory
from bireme_operator.plan.observed import Leave, Observed, PodView
from bireme_operator.plan.suspects import hear

Key = tuple[str, str]
SHUNNED_S: Final = 1800.0
"""So long no new pod is sent to a node that a group has left, unless a stage is heard there before."""


@dataclass
class _Deployment:
    """Since when its stages are not heard, by pod; the nodes of those, and how many nodes it has."""

    since: Mapping[str, float] = field(default_factory=dict)
    nodes: frozenset[str] = frozenset()
    of: int = 0

    @property
    def judges(self) -> bool:
        """Whether it is few enough of its nodes to be their fault."""
        return 2 * len(self.nodes) <= self.of


@dataclass
class Isolation:
    """See the module. ``clock`` tells Unix seconds; after ``after_s`` a node is to be left, 0 for never."""

    clock: Callable[[], float]
    after_s: float
    _of: dict[Key, _Deployment] = field(default_factory=dict)
    _shunned: dict[str, float] = field(default_factory=dict)

    def listen(self, key: Key, observed: Observed, groups: Mapping[int, GroupMemory], doubted: Collection[str]) -> None:
        """Take what a deployment hears now. Where no node is ``doubted`` all its stages are heard."""
        now, known = self.clock(), self._of.get(key, _Deployment()).since
        if not doubted and not known and not self._shunned:
            return
        hearing = hear(observed, {index for index, group in groups.items() if group.served}, now)
        self._shunned = {node: end for node, end in self._shunned.items() if node not in hearing.heard and now < end}
        since = {pod.name: known.get(pod.name, now) for pod in hearing.unheard}
        nodes = frozenset(pod.node for pod in hearing.unheard)
        self._of[key] = _Deployment(since, nodes, len(hearing.nodes))
        self._shunned |= {pod.node: now + SHUNNED_S for pod in hearing.unheard if self.leave(key, pod)}

    def forget(self, key: Key) -> None:
        """Nobody looks after this deployment any more."""
        self._of.pop(key, None)

    def leave(self, key: Key, pod: PodView) -> Leave | None:
        """Return why a pod is to be had elsewhere, if it is."""
        found = self._of.get(key, _Deployment())
        since = found.since.get(pod.name)
        if since is None or not self.after_s or self.clock() < since + self.after_s or not found.judges:
            return None
        return Leave(f"its group has not heard it for {self.after_s:g} s and more", patient=True)

    def misses(self, key: Key) -> bool:
        """Whether a deployment does not hear all its stages."""
        return key in self._of and bool(self._of[key].since)

    def dues(self, key: Key) -> Iterator[float]:
        """Yield when pods of a deployment will be asked to leave."""
        ends = (since + self.after_s for since in self._of.get(key, _Deployment()).since.values())
        yield from (end for end in ends if self.after_s and end > self.clock())

    @property
    def shunned(self) -> frozenset[str]:
        """The nodes that new pods are kept off."""
        now = self.clock()
        return frozenset(node for node, until in self._shunned.items() if now < until)
