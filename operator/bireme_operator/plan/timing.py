"""How long each step of a group's start or recovery takes, for `status.groups[].timings`.

A group is in one step at a time: the earliest that is not done by all its parts, which is what everybody else waits
for. Steps follow from what is seen; a step that comes twice, because a part was lost once more, counts both times.
"""

from dataclasses import replace
from enum import StrEnum

from bireme.names import GroupState, Reason
from bireme_operator.plan.group import Group
from bireme_operator.plan.memory import GroupMemory, Timing
from bireme_operator.plan.observed import SILENT_AFTER_S, Phase, PodView
from bireme_operator.plan.suspects import UNHEARD_S

_AT_REST = (GroupState.DRAINING, GroupState.FAILED)


class Step(StrEnum):
    """What a group that does not serve waits for. DETECT: somebody is silent, and nobody knows yet what is lost."""

    DETECT = "detect"
    SCHEDULE = "schedule"
    START = "start"
    LOAD = "load"
    RENDEZVOUS = "rendezvous"
    WARM = "warm"


def remember_timing(group: Group, known: GroupMemory, now: float) -> GroupMemory:
    """Note which step the group is in, and how long the ones before it took since it served last."""
    timing, step = known.timing, _step_of(group)
    if step == timing.step:
        return known
    took: dict[str, float] = {}
    if timing.step:
        took = {**timing.took, timing.step: round(timing.took.get(timing.step, 0.0) + now - timing.since, 3)}
    elif step and known.served:
        unseen_s = round(_unseen_s(group, now), 3)
        took = {Step.DETECT: unseen_s}
        known = replace(known, down_since=now - unseen_s) if known.down_since == now else known
    return replace(known, timing=Timing(step, now, took))


def _unseen_s(group: Group, now: float) -> float:
    """Return how long ago what is lost gave its last sign of life, when its group is first seen not to serve.

    Of a stage that is the leader's word, of a hung rank the age of its last step, of a leader our own ear.
    """
    if group.document is None:
        return max(now - group.heard_at, 0.0) if group.heard_at else 0.0
    stages = group.document.stages
    if group.document.reason == Reason.HUNG:
        ages = [rank.step_age_s for stage in stages for rank in stage.ranks if rank.phase != "Down"]
        ages.append(group.document.step_age_s)
    else:
        ages = [stage.last_heard_s for stage in stages if stage.stage != group.document.stage]
    return max(ages, default=0.0) + max(now - group.heard_at, 0.0)


def _is_in_doubt(group: Group) -> bool:
    """Whether all stages seem to run, and one of them is not heard."""
    if not group.memory.served or any(pod.node_lost for pod in group.stages.values()):
        return False
    if group.document is None:
        return group.unheard_s is not None and group.unheard_s >= SILENT_AFTER_S
    return any(stage.last_heard_s >= UNHEARD_S for stage in group.document.stages)


def _step_of(group: Group) -> str:
    """Return the step, nothing for a group that serves or is left to itself."""
    if group.verdict.serving or group.verdict.state in _AT_REST:
        return ""
    pods = group.stages.values()
    if any(_is_unplaced(pod) for pod in pods):
        return Step.SCHEDULE
    missing = len(group.stages) < group.size or any(pod.phase is not Phase.RUNNING for pod in pods)
    if not missing and _is_in_doubt(group):
        return Step.DETECT
    if missing or group.document is None:
        return Step.START
    phases = {rank.phase for stage in group.document.stages for rank in stage.ranks}
    if not phases or "Down" in phases:
        return Step.START
    if "Loading" in phases:
        return Step.LOAD
    return Step.RENDEZVOUS if phases & {"Idle", "Ending"} else Step.WARM


def _is_unplaced(pod: PodView) -> bool:
    return pod.gated or pod.unplaced or (pod.phase is Phase.PENDING and not pod.node)
