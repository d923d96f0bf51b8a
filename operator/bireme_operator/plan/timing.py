"""How long each step of a group's start or recovery takes, for `status.groups[].timings`.

A group is in one step at a time: the earliest that is not done by all its parts, which is what everybody else waits
for. Steps follow from what is seen; a step that comes twice, because a part was lost once more, counts both times.
"""

from dataclasses import replace
from enum import StrEnum

from bireme.names import GroupState
from bireme_operator.plan.group import Group
from bireme_operator.plan.memory import GroupMemory, Timing
from bireme_operator.plan.observed import Phase, PodView

_AT_REST = (GroupState.DRAINING, GroupState.FAILED)


class Step(StrEnum):
    """What a group that does not serve waits for."""

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
    took = {}
    if timing.step:
        took = {**timing.took, timing.step: round(timing.took.get(timing.step, 0.0) + now - timing.since, 3)}
    return replace(known, timing=Timing(step, now, took))


def _step_of(group: Group) -> str:
    """Return the step, nothing for a group that serves or is left to itself."""
    if group.verdict.serving or group.verdict.state in _AT_REST:
        return ""
    pods = group.stages.values()
    if any(_is_unplaced(pod) for pod in pods):
        return Step.SCHEDULE
    missing = len(group.stages) < group.size or any(pod.phase is not Phase.RUNNING for pod in pods)
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
