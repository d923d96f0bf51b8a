"""Which nodes somebody has reason to think dead. Reason is not proof: the node's Lease is asked next.

Two witnesses must agree before a pod is replaced. The first is here: the leader has not heard a stage, or the leader
itself is not heard. A partition of the API server alone silences nobody here, so it costs no pod.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from bireme.wire.state import StageState
from bireme_operator.plan.observed import SILENT_AFTER_S, LeaderView, Observed, Phase, PodView

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
    stages = _newest(pods)
    for pod in stages.values():
        if pod.phase is Phase.PENDING and now - pod.started_at >= SLOW_START_S:
            yield pod.node  # it may have died before it started the pod; there is no worker to ask
    yield from (pod.node for pod in _unheard(stages, observed, now))


def _unheard(stages: Mapping[int, PodView], observed: Observed, now: float) -> Iterator[PodView]:
    """Yield the leader if it is not heard, else the stages that it does not hear."""
    leader = stages.get(0)
    if leader is None or leader.phase is not Phase.RUNNING or leader.name in observed.strangers:
        return
    view = _heard(leader, observed, now)
    if view is not None:
        yield from (stages[said.stage] for said in view.document.stages if said.stage in stages and _is_missed(said))
    elif now - leader.started_at >= SILENT_AFTER_S:
        yield leader


def _heard(leader: PodView, observed: Observed, now: float) -> LeaderView | None:
    """Return what a leader says, if it is heard now."""
    view = observed.leader(leader.group, leader)
    return view if view is not None and view.connected and now - view.heard_at < SILENT_AFTER_S else None


def _is_missed(said: StageState) -> bool:
    return said.stage != 0 and said.last_heard_s >= UNHEARD_S


@dataclass(frozen=True)
class Hearing:
    """Which running stages nobody hears, and the names of those that are heard; what is neither is not known."""

    unheard: tuple[PodView, ...] = ()
    heard: frozenset[str] = frozenset()


def hear(observed: Observed, now: float) -> Hearing:
    """Look who is heard in each group.

    Where the leader is ready by its kubelet's word, all its stages are heard: it is only we who don't hear it. Of one
    that hears none of several others, the other ends are more likely right.
    """
    unheard: list[PodView] = []
    heard: set[str] = set()
    for pods in observed.by_group.values():
        stages = _newest(pods)
        leader = stages.get(0)
        running = [pod for pod in stages.values() if pod.phase is Phase.RUNNING]
        if leader is None or leader.ready:
            heard |= {pod.name for pod in running if leader is not None}
            continue
        missed = [pod for pod in _unheard(stages, observed, now) if pod.phase is Phase.RUNNING]
        if len(missed) > 1 and len(missed) == len(stages) - 1:
            missed = [leader]
        unheard += missed
        view = _heard(leader, observed, now)
        if view is not None and leader not in missed:
            words = {said.stage for said in view.document.stages if said.ranks and not _is_missed(said)} | {0}
            heard |= {pod.name for pod in running if pod.stage in words}
    return Hearing(tuple(unheard), frozenset(heard))


def _newest(pods: tuple[PodView, ...]) -> Mapping[int, PodView]:
    living = sorted((pod for pod in pods if not pod.deleting), key=lambda pod: pod.incarnation)
    return {pod.stage: pod for pod in living}
