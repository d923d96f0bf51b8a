"""Stages that nobody of their group has heard for long although their kubelet is: their node has lost its peers.

It is not lost, as its Lease is renewed, and nobody is made anew at once: a switch may be mended in a minute, and then
all go on with the weights that they have. But no group waits for it for ever: in the end it is a wish to leave, like a
silent kubelet (silence.py). While it is most of a deployment's nodes the fault is elsewhere, and nobody moves.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from bireme_operator.plan.memory import GroupMemory
from bireme_operator.plan.observed import Leave, Observed, Phase, PodView
from bireme_operator.plan.suspects import hear

Key = tuple[str, str]
SHUNNED_S: Final = 1800.0
"""So long no new pod is sent to a node that a group has left, unless a stage is heard there before."""
_REMEMBERED_S: Final = 86_400.0
"""So long after that a group on such a node need not have served to be asked to leave it again."""


@dataclass
class _Deployment:
    """``since``: when its pods were heard no more, by name. ``shunned``: until when nodes are, also those of before."""

    since: dict[str, float] = field(default_factory=dict)
    shunned: dict[str, float] = field(default_factory=dict)
    judges: bool = False


@dataclass
class Isolation:
    """See the module. ``clock`` tells Unix seconds; after ``after_s`` a node is to be left, 0 for never."""

    clock: Callable[[], float]
    after_s: float
    _of: dict[Key, _Deployment] = field(default_factory=dict)

    def listen(self, key: Key, observed: Observed, groups: Mapping[int, GroupMemory], doubted: Collection[str]) -> None:
        """Take what a deployment hears now. Where no node is ``doubted`` all its stages are heard.

        A pod is missed until it is heard: that its leader is not heard for a moment, or starts again, tells nothing.
        A group that never served may lack anything, but for a place on a node that was left before. One that was
        asked to leave already, by an operator before this one, is not asked to wait again.
        """
        if not doubted and key not in self._of:
            return
        hearing, now, new = hear(observed, self.clock()), self.clock(), key not in self._of
        known = self._of.setdefault(key, _Deployment())
        living = {pod.name: pod for pod in observed.pods if pod.node and not pod.deleting}
        for name in hearing.heard:
            known.shunned.pop(living[name].node, None)
        missed = {name: at for name, at in known.since.items() if name in living and name not in hearing.heard}
        for pod in hearing.unheard:
            group = groups.get(pod.group)
            if group is not None and (group.served or pod.node in known.shunned):
                begun = new and pod.node in group.asked
                missed.setdefault(pod.name, now - self.after_s if begun else now)
        known.since = missed
        silent = {living[name].node for name in missed if living[name].phase is Phase.RUNNING}
        known.judges = 2 * len(silent) <= len({pod.node for pod in living.values()})
        known.shunned |= {living[name].node: now + SHUNNED_S for name in missed if self.leave(key, living[name])}
        known.shunned = {node: end for node, end in known.shunned.items() if now < end + _REMEMBERED_S}
        if not missed and not known.shunned:
            del self._of[key]

    def forget(self, key: Key) -> None:
        """Nobody looks after this deployment any more."""
        self._of.pop(key, None)

    def leave(self, key: Key, pod: PodView) -> Leave | None:
        """Return why a pod is to be had elsewhere, if it is."""
        known = self._of.get(key)
        since = known.since.get(pod.name) if known is not None and known.judges else None
        if since is None or not self.after_s or self.clock() < since + self.after_s:
            return None
        who = "its group has not heard it" if pod.stage else "it is not ready and not heard"
        return Leave(f"{who} for {self.after_s:g} s and more", patient=True)

    def misses(self, key: Key) -> bool:
        """Whether a deployment does not hear all its stages."""
        return key in self._of and bool(self._of[key].since)

    def dues(self, key: Key) -> Iterator[float]:
        """Yield when pods of a deployment will be asked to leave."""
        ends = (since + self.after_s for since in self._of[key].since.values()) if key in self._of else ()
        yield from (end for end in ends if self.after_s and end > self.clock())

    def shunned(self, key: Key) -> frozenset[str]:
        """Return the nodes that new pods of a deployment are kept off."""
        until = self._of[key].shunned if key in self._of else {}
        return frozenset(node for node, end in until.items() if self.clock() < end)
