"""Which nodes somebody has reason to think dead. Reason is not proof: the node's Lease is asked next.

Two witnesses must agree before a pod is replaced. The first is here: the leader has not heard a stage, or the leader
itself is not heard. A partition of the API server alone silences nobody here, so it costs no pod.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from bireme_operator.plan.observed import SILENT_AFTER_S, Observed, Phase, PodView

UNHEARD_S: Final = 2.0
"""A stage says something every quarter of a second."""
SLOW_START_S: Final = 10.0
"""Most images are there within it; after it the node's Lease is worth a look each second."""


def suspects(observed: Observed, now: float, *, custom: bool = False) -> frozenset[str]:
    """Return the names of the nodes in doubt. A ``custom`` engine has no leader to hear; its pods' probes speak."""
    idle = {pod.node for pod in observed.spares if pod.phase is Phase.RUNNING and not pod.ready and not pod.deleting}
    of_group = _of_foreign if custom else _of_group
    doubted = {node for pods in observed.by_group.values() for node in of_group(pods, observed, now)}
    return frozenset(doubted | idle) - {""}


def _of_foreign(pods: tuple[PodView, ...], _: Observed, now: float) -> Iterator[str]:
    for pod in pods:
        slow = pod.phase is Phase.PENDING and now - pod.started_at >= SLOW_START_S
        if not pod.deleting and (slow or (pod.phase is Phase.RUNNING and not pod.ready)):
            yield pod.node


def _of_group(pods: tuple[PodView, ...], observed: Observed, now: float) -> Iterator[str]:
    living = sorted((pod for pod in pods if not pod.deleting), key=lambda pod: pod.incarnation)
    stages: Mapping[int, PodView] = {pod.stage: pod for pod in living}
    for pod in stages.values():
        if pod.phase is Phase.PENDING and now - pod.started_at >= SLOW_START_S:
            yield pod.node  # it may have died before it started the pod; there is no worker to ask
    leader = stages.get(0)
    if leader is None or leader.phase is not Phase.RUNNING or leader.name in observed.strangers:
        return
    view = observed.leader(leader.group, leader)
    if view is None or not view.connected or now - view.heard_at >= SILENT_AFTER_S:
        if now - leader.started_at >= SILENT_AFTER_S:
            yield leader.node
        return
    for said in view.document.stages:
        if said.stage in stages and said.stage != 0 and said.last_heard_s >= UNHEARD_S:
            yield stages[said.stage].node
