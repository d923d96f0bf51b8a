"""By which signs a node asks its pods to leave: a cordon, a taint that they do not tolerate, or a signal.

Autoscalers, spot reclaimers and node upgraders taint a node before they empty it. A pod that runs beside a taint it
does not tolerate was there before the taint, so the taint is news. What the node controller writes itself (not-ready,
unreachable, pressure) tells of the node's health, not of a wish. Signals (see signals.py) are no matter of toleration.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from bireme_operator.plan.places import REPELLING, tolerates
from bireme_operator.shell.signals import Signal, Watched

_HEALTH: Final = "node.kubernetes.io/"
_CORDON: Final[Mapping[str, Any]] = {"key": "node.kubernetes.io/unschedulable", "value": "", "effect": "NoSchedule"}
"""How the scheduler reads a cordon."""


@dataclass(frozen=True)
class Signs:
    """What one node says."""

    cordoned: bool = False
    taints: tuple[Mapping[str, Any], ...] = ()
    signals: tuple[Signal, ...] = ()

    def concern(self, tolerations: Sequence[Mapping[str, Any]]) -> bool:
        """Whether a pod with these tolerations is asked to leave."""
        return bool(self.cordoned or self.signals) or any(not tolerates(taint, tolerations) for taint in self.taints)

    def lure(self, tolerations: Sequence[Mapping[str, Any]]) -> bool:
        """Whether the scheduler would send such a pod here, although it would be asked to leave at once."""
        keep_off = (*self.taints, *([_CORDON] if self.cordoned else ()))
        return self.concern(tolerations) and all(tolerates(taint, tolerations) for taint in keep_off)

    @property
    def urgent(self) -> Signal:
        """What leaves the least time; without a signal, the taints by name."""
        limited = sorted((one for one in self.signals if one.notice_s), key=lambda one: one.notice_s)
        if found := [*limited, *self.signals]:
            return found[0]
        return Signal(", ".join(f"taint {taint['key']}" for taint in self.taints))


STAY: Final = Signs()


def signs_of(node: Mapping[str, Any], watched: Watched | None = None) -> Signs:
    """Read them off a node."""
    spec = node.get("spec") or {}
    repelling = [taint for taint in spec.get("taints") or () if taint["effect"] in REPELLING]
    wishes = [
        {"key": taint["key"], "value": taint.get("value", ""), "effect": taint["effect"]}
        for taint in repelling
        if not taint["key"].startswith(_HEALTH)
    ]
    return Signs(bool(spec.get("unschedulable")), tuple(wishes), tuple((watched or Watched()).on(node)))
