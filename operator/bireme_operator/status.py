"""What is said of a deployment, in the CRD's shape: groups, counts, and all six conditions from the first visit on.

Pure: made of what the planner judged. A group is called serving only on evidence that is fresh (see plan/group.py).
"""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bireme.api.status import Condition, ConditionStatus, GroupStatus, GroupTimings, Status
from bireme.names import ConditionType, GroupState, Label, Reason
from bireme_operator.plan.desired import Desired
from bireme_operator.plan.fallback import gave_up
from bireme_operator.plan.group import Group
from bireme_operator.plan.judgement import Judgement, Outcome
from bireme_operator.plan.memory import GroupMemory, Memory, Transition
from bireme_operator.plan.providers import NO_GANGS
from bireme_operator.plan.rest import Rest
from bireme_operator.plan.rollout import is_leaving

TEXT_LIMIT = 1024
IN_THE_WAY = " is in the way: "
"""What a refusal says of an object that is not ours."""
_NO_QUOTA = "exceeded quota"
"""What an API server says, of whatever kind."""


@dataclass(frozen=True)
class _Judged:
    """Whether a condition holds, and why."""

    holds: bool
    reason: str
    message: str = ""


def describe(
    desired: Desired,
    groups: Sequence[Group],
    memory: Memory,
    now: float,
    *,
    refusal: str = "",
    name_taken: str = "",
    canary: Judgement | None = None,
    conflicts: Mapping[int, str] | None = None,
    rest: Rest | None = None,
) -> tuple[Status, dict[str, Transition]]:
    """Return the status and, to be remembered, since when each condition holds or does not.

    ``refusal`` has the backend's words when it can't make the pods that are wanted, ``name_taken`` says whose name the
    wanted checkpoint has. ``canary`` is what is thought of it now, ``conflicts`` names what makes
    evictions of a group fail.
    """
    judged = _conditions(desired, groups)
    if canary is not None and canary.outcome is Outcome.HOLD:
        words = _Judged(True, Reason.CANARY_ANALYSIS, f"the canary {canary.message}")
        judged |= dict.fromkeys((ConditionType.PROGRESSING, ConditionType.RECONCILING), words)
    if memory.progress and memory.progress.failed and memory.progress.key == desired.rendering.key:
        judged |= _given_up(desired, memory, memory.progress.failed, judged[ConditionType.STALLED])
    if refusal or name_taken:
        judged |= _refused(_reason_of(refusal) if refusal else Reason.NAME_TAKEN, refusal or name_taken)
    if desired.replicas_owner:
        judged |= _two_autoscalers(desired)
    held: dict[str, Transition] = {k: _transition(memory.conditions.get(k), judged[k].holds, now) for k in judged}
    serving = [group for group in groups if group.verdict.serving]
    current = [group for group in groups if group.stages and group.current(desired)]
    status = Status(
        observed_generation=desired.generation,
        replicas=len(groups),
        desired_replicas=desired.replicas,
        ready_replicas=len(serving),
        updated_replicas=len(current),
        available_replicas=len(serving),
        restarts=sum(group.memory.restarts for group in groups),
        selector=f"{Label.DEPLOYMENT}={desired.name},{Label.STAGE}=0",
        topology=f"{desired.tensor}x{desired.stages}",
        current_revision=_common([pod.revision for group in groups for pod in group.living]) or desired.revision,
        update_revision=desired.revision,
        model_revision=_only([group.model_revision for group in serving]),
        restart=desired.restart[:TEXT_LIMIT],
        resume=desired.resume[:TEXT_LIMIT],
        conditions=tuple(_condition(kind, judged[kind], held[kind].since, desired.generation) for kind in judged),
        groups=tuple(
            _group(group, memory.groups[group.index], (conflicts or {}).get(group.index, ""), rest) for group in groups
        ),
    )
    return status, held


def describe_invalid(generation: int, message: str, memory: Memory, now: float) -> tuple[Status, dict[str, Transition]]:
    """Return the status of an object that can't be understood: nothing is judged, so nothing is said of its groups."""
    words = (Reason.BAD_CONFIGURATION, message)
    judged = {kind: _Judged(kind is ConditionType.STALLED, *words) for kind in ConditionType}
    held: dict[str, Transition] = {k: _transition(memory.conditions.get(k), judged[k].holds, now) for k in judged}
    conditions = tuple(_condition(kind, judged[kind], held[kind].since, generation) for kind in judged)
    return Status(observed_generation=generation, conditions=conditions), held


def rfc3339(when: float) -> str:
    """Write Unix seconds as the API's times are written."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(when))


def _group(group: Group, memory: GroupMemory, conflict: str, rest: Rest | None) -> GroupStatus:
    if rest is not None and (known := rest.said(group, conflict)) is not None:
        return known
    pods, said = group.living, group.verdict
    reason, message = said.reason, said.message or (_leaving(group) if group.moving else "")
    if conflict and said.reason == Reason.NONE:
        reason, message = Reason.CONFLICTING_PDB, f"evictions fail: PodDisruptionBudget {conflict} selects its pods too"
    return GroupStatus(
        index=group.index,
        epoch=group.verdict.epoch or memory.epoch,
        revision=_common([pod.revision for pod in pods]),
        model_revision=group.model_revision,
        state=group.verdict.state,
        reason=reason,
        message=message[:TEXT_LIMIT],
        nodes=_nodes(group),
        restarts=memory.restarts,
        since=rfc3339(memory.since),
        timings=_timings(memory),
    )


def _timings(memory: GroupMemory) -> GroupTimings:
    """Of the last start or recovery; of the one under way the steps that are over, and no total of another."""
    took = {step: round(seconds * 1000) for step, seconds in memory.timing.took.items()}
    whole = memory.total_s is not None and not memory.timing.step
    return GroupTimings(
        detect_milliseconds=took.get("detect"),
        schedule_milliseconds=took.get("schedule"),
        start_milliseconds=took.get("start"),
        load_milliseconds=took.get("load"),
        rendezvous_milliseconds=took.get("rendezvous"),
        warm_milliseconds=took.get("warm"),
        total_milliseconds=round((memory.total_s or 0.0) * 1000) if whole else None,
    )


def _nodes(group: Group) -> tuple[str, ...]:
    """Return the node of each stage, or nothing where there are no nodes."""
    nodes = tuple(group.stages[stage].node for stage in sorted(group.stages))
    return nodes if any(nodes) else ()


def _conditions(desired: Desired, groups: Sequence[Group]) -> dict[ConditionType, _Judged]:
    wanted = [group for group in groups if not is_leaving(group)]
    serving = [group for group in wanted if group.verdict.serving]
    failed = [group for group in wanted if group.verdict.state is GroupState.FAILED]
    complete = len(groups) == desired.replicas
    settled = complete and len(serving) == len(groups) and all(group.current(desired) for group in groups)
    stalled = complete and bool(failed) and len(failed) + len(serving) == len(groups)
    reason, message = _summary(desired, groups, serving)
    why, told = _trouble(failed) if stalled else (reason, message)
    underway = not stalled and not desired.paused
    is_idle = desired.replicas == 0 and not desired.stopping
    return {
        ConditionType.READY: _Judged(settled and not desired.stopping, why, told),
        ConditionType.AVAILABLE: _Judged(bool(serving) or is_idle, reason, message),
        ConditionType.PROGRESSING: _Judged(underway, why, told),
        ConditionType.SCHEDULED: _scheduled(wanted, desired),
        ConditionType.RECONCILING: _Judged(underway and not settled, reason, message),
        ConditionType.STALLED: _Judged(stalled, why, told) if stalled else _Judged(False, Reason.NONE),
    }


def _scheduled(groups: Sequence[Group], desired: Desired) -> _Judged:
    """Say which groups lack a place and, when a rollout waits for one of them, what would help."""
    unplaced = [group for group in groups if group.verdict.state is not GroupState.FAILED and not group.placed]
    if not unplaced and desired.no_gangs:
        return _Judged(True, Reason.NATIVE_GANG_IGNORED, desired.no_gangs)
    if not unplaced:
        return _Judged(True, Reason.NONE)
    message = _listed("lacks a place for a stage", [group.index for group in unplaced])
    if movers := [group for group in groups if group.moving]:
        message += f"; {_leaving(movers[0])}, and there is no room for its successor: add nodes or take that back"
    waits = any(group.memory.draining is None and group.outdated(desired) for group in groups)
    if waits and len(groups) > desired.replicas and desired.rollout.unavailable == 0:
        message += "; no spare capacity for the rollout: add nodes, or set rollout.maxUnavailable to 1"
    if desired.no_gangs:
        message += f"; {desired.no_gangs}"
    return _Judged(False, unplaced[0].verdict.reason, message)


def _leaving(group: Group) -> str:
    return f"group {group.index} {group.asked}"


def _given_up(desired: Desired, memory: Memory, failed: str, stalled: _Judged) -> dict[ConditionType, _Judged]:
    """A rollout that failed: what serves is the last good revision, or it goes on trying where there is none."""
    if gave_up(desired, memory) is None:
        return {ConditionType.PROGRESSING: _Judged(False, Reason.PROGRESS_DEADLINE_EXCEEDED, failed)}
    assert memory.progress is not None
    back = desired.rollout.roll_back
    reason = Reason.ROLLED_BACK if back else memory.progress.failed_by
    then = "the last good revision is kept" if back else "the groups are left as they are"
    words = (reason, f"{failed}; {then} until the spec changes")
    false = (ConditionType.READY, ConditionType.PROGRESSING, ConditionType.RECONCILING)
    told = stalled if stalled.holds else _Judged(True, *words)
    return {kind: _Judged(False, *words) for kind in false} | {ConditionType.STALLED: told}


def _two_autoscalers(desired: Desired) -> dict[ConditionType, _Judged]:
    """The number that a HorizontalPodAutoscaler sets is followed, and somebody has to take one of the two away."""
    first = "remove its HorizontalPodAutoscaler and set another number, which takes the field over"
    message = f"{desired.replicas_owner} sets spec.replicas: {first}, or remove spec.autoscaling"
    return {ConditionType.STALLED: _Judged(True, Reason.TWO_AUTOSCALERS, message)}


def _reason_of(refusal: str) -> Reason:
    if refusal.startswith(NO_GANGS):
        return Reason.NATIVE_GANG_IGNORED
    if IN_THE_WAY in refusal:
        return Reason.OBJECT_IN_THE_WAY
    return Reason.QUOTA if _NO_QUOTA in refusal else Reason.INVALID_TEMPLATE


def _refused(reason: Reason, message: str) -> dict[ConditionType, _Judged]:
    """Nothing more happens until the spec is changed, whatever serves meanwhile."""
    false = (ConditionType.READY, ConditionType.PROGRESSING, ConditionType.RECONCILING)
    words = (reason, message)
    return {kind: _Judged(False, *words) for kind in false} | {ConditionType.STALLED: _Judged(True, *words)}


def _trouble(failed: Sequence[Group]) -> tuple[str, str]:
    first = failed[0]
    return first.verdict.reason, f"group {first.index}: {first.verdict.message}"


def _summary(desired: Desired, groups: Sequence[Group], serving: Sequence[Group]) -> tuple[Reason, str]:
    states = Counter(group.verdict.state for group in groups if not group.verdict.serving)
    others = "".join(f", {count} {state}" for state, count in sorted(states.items()))
    message = f"{len(serving)} of {desired.replicas} groups serve{others}"
    if desired.stopping:
        return Reason.SHUTTING_DOWN, message
    if desired.paused:
        return Reason.PAUSED, message
    if desired.replicas == 0:
        return Reason.SCALED_TO_ZERO, message
    if not serving:
        return Reason.NO_GROUP_SERVING, message
    return (Reason.ALL_GROUPS_SERVING if len(serving) >= desired.replicas else Reason.SOME_GROUPS_SERVING), message


def _condition(kind: ConditionType, judged: _Judged, since: float, generation: int) -> Condition:
    return Condition(
        type=kind,
        status=ConditionStatus.TRUE if judged.holds else ConditionStatus.FALSE,
        reason=judged.reason,
        message=judged.message[:TEXT_LIMIT],
        last_transition_time=rfc3339(since),
        observed_generation=generation,
    )


def _transition(before: Transition | None, status: bool, now: float) -> Transition:
    return before if before is not None and before.status == status else Transition(status, now)


def _listed(what: str, groups: Sequence[int]) -> str:
    return f"group {', '.join(map(str, groups))} {what}" if groups else ""


def _common(values: Sequence[str]) -> str:
    """Return the most frequent value."""
    if len(set(values)) <= 1:
        return values[0] if values else ""
    return Counter(values).most_common(1)[0][0]


def _only(values: Sequence[str]) -> str:
    """Return the value if all agree."""
    return values[0] if len(set(values)) == 1 else ""
