"""By which signs a node asks its pods to leave: a cordon, or a taint that they do not tolerate.

Autoscalers, spot reclaimers and node upgraders taint a node before they empty it. A pod that runs beside a taint it
does not tolerate was there before the taint, so the taint is news. What the node controller writes itself (not-ready,
unreachable, pressure) tells of the node's health, not of a wish.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from bireme_operator.plan.places import REPELLING, tolerates

_HEALTH: Final = "node.kubernetes.io/"


@dataclass(frozen=True)
class Signs:
    """What one node says."""

    cordoned: bool = False
    taints: tuple[Mapping[str, Any], ...] = ()

    def concern(self, tolerations: Sequence[Mapping[str, Any]]) -> bool:
        """Whether a pod with these tolerations is asked to leave."""
        return self.cordoned or any(not tolerates(taint, tolerations) for taint in self.taints)


STAY: Final = Signs()


def signs_of(node: Mapping[str, Any]) -> Signs:
    """Read them off a node."""
    spec = node.get("spec") or {}
    repelling = [taint for taint in spec.get("taints") or () if taint["effect"] in REPELLING]
    wishes = [
        {"key": taint["key"], "value": taint.get("value", ""), "effect": taint["effect"]}
        for taint in repelling
        if not taint["key"].startswith(_HEALTH)
    ]
    return Signs(bool(spec.get("unschedulable")), tuple(wishes))
