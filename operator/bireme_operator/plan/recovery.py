"""When to start again, how long to wait first, and when to stop trying.

A death is one end of a pod's process, or a pod that vanished. Each (pod, restart) is charged once, whoever saw it and
however often it is looked at. Exit codes 64 and 65 end it at once: the same start would fail the same way.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

from bireme.names import Exit, Reason
from bireme_operator.plan.desired import Desired, RecoveryPolicy
from bireme_operator.plan.memory import Failure, GroupMemory, generation_key, updated
from bireme_operator.plan.observed import Phase, PodView

CRASH_LOOP_RESTARTS: Final = 3
"""A pod that waits for its fourth start is made anew: a fresh place and an empty state directory may help."""
_KEPT_DEATHS: Final = 16
_FORGOTTEN_S: Final = 30.0
"""What ended before a group has served for so long is not why it serves no more later."""
_FINAL: Final[Mapping[int, Reason]] = {
    Exit.BAD_CONFIGURATION: Reason.BAD_CONFIGURATION,
    Exit.BAD_CHECKPOINT: Reason.BAD_CHECKPOINT,
}


def delay_s(deaths: int, policy: RecoveryPolicy) -> float:
    """Return the wait after the given number of deaths in a row: none after the first, then doubling."""
    if deaths <= 1:
        return 0.0
    return min(policy.initial_s * 2.0 ** min(deaths - 2, 32), policy.longest_s)


def in_a_row(deaths: Sequence[float], policy: RecoveryPolicy) -> int:
    """Count the last deaths with less than twice the longest wait between one and the next."""
    calm = 2 * policy.longest_s
    gaps = [later - earlier for earlier, later in pairwise(deaths)]
    unbroken = next((n for n, gap in enumerate(reversed(gaps)) if gap >= calm), len(gaps))
    return min(len(deaths), unbroken + 1)


@dataclass(frozen=True)
class Wait:
    """When a group's lost parts may be made again, after how many deaths in a row."""

    until: float
    deaths: int


def wait_of(memory: GroupMemory, policy: RecoveryPolicy, now: float) -> Wait:
    """Return the wait that follows from the deaths so far. A death long ago waits for nothing."""
    if not memory.deaths or now - memory.deaths[-1] >= 2 * policy.longest_s:
        return Wait(now, 0)
    deaths = in_a_row(memory.deaths, policy)
    return Wait(memory.deaths[-1] + delay_s(deaths, policy), deaths)


def making_of(memory: GroupMemory, living: Sequence[PodView], desired: Desired) -> int:
    """Return the incarnation that all stages of a group have together, 0 where they are made anew one by one.

    It rises when a stage that has been made is lost. What began a higher one before the operator ended is carried on:
    the pods tell, so nothing is made twice.
    """
    if not desired.recovery.whole:
        return 0
    highest = max([memory.floor, *memory.incarnations.values(), *(pod.incarnation for pod in living)])
    making = highest if memory.making else 0
    made = {pod.stage: pod for pod in living if pod.incarnation >= making}
    lost = [
        stage
        for stage in range(desired.stages)
        if (stage not in made or is_spent(made[stage]) or (making and made[stage].deaths))
        and memory.incarnation(stage) >= making
    ]
    return highest + 1 if lost else making


def is_spent(pod: PodView) -> bool:
    """Whether a pod must be made anew: its end was final, its node is dead, or it crashes again and again in place.

    One that waits for a node, and was kept off one that is open again, is made anew too: that can't be taken back.
    """
    crash_loop = pod.phase is Phase.BACKING_OFF and pod.restarts >= CRASH_LOOP_RESTARTS
    return pod.phase is Phase.EXITED or crash_loop or pod.node_lost or pod.stranded


def charge(memory: GroupMemory, pods: Sequence[PodView], desired: Desired, now: float) -> GroupMemory:
    """Count the deaths that are new, and mark the group Failed when they are one too many or final.

    ``pods`` are all pods of the group. An end that somebody asked for is no death; to vanish unasked is one.
    """
    memory = _forgive(memory, desired)
    present = {pod.name: pod for pod in pods if not pod.deleting}
    vanished = set(memory.counted) - {pod.name for pod in pods} - memory.leaving
    memory = updated(memory, leaving=memory.leaving & present.keys())
    if memory.failure or memory.draining:
        return updated(memory, counted={name: pod.deaths for name, pod in present.items()})
    new = {name: pod.deaths - memory.counted.get(name, 0) for name, pod in present.items()}
    deaths = sum(new.values()) + len(vanished)
    if desired.recovery.whole:
        deaths = min(deaths, 1)  # one loss takes the others along
    last = [_last_words(pod) for name, pod in present.items() if new[name] > 0] + [
        f"pod {name} is gone" for name in sorted(vanished)
    ]
    keep = max(desired.recovery.budget + 1, _KEPT_DEATHS)
    memory = updated(
        memory,
        counted={name: pod.deaths for name, pod in present.items()},
        deaths=(*memory.deaths, *[now] * deaths)[-keep:],
        last_death=last[-1] if last else _still_told(memory, now),
        restarts=memory.restarts + deaths,
    )
    return updated(memory, failure=_final(present.values(), desired) or _over_budget(memory, desired, now))


def the_last(memory: GroupMemory) -> str:
    """Return a clause with what ended last, empty where that was forgotten."""
    return f"; the last: {memory.last_death}" if memory.last_death else ""


def _still_told(memory: GroupMemory, now: float) -> str:
    calm = now - max([memory.since, *memory.deaths[-1:]]) >= _FORGOTTEN_S
    return "" if calm and memory.down_since is None else memory.last_death


def _forgive(memory: GroupMemory, desired: Desired) -> GroupMemory:
    if memory.failure is None or memory.failure.key == _key(memory.failure.reason, desired):
        return memory
    return replace(memory, failure=None, deaths=())


def _key(reason: Reason, desired: Desired) -> str:
    """Name what must change before another try makes sense."""
    restart = f", restart {desired.restart}" if desired.restart else ""
    restart += f", resume {desired.resume}" if desired.resume else ""
    if reason is Reason.BUDGET_EXHAUSTED:
        return f"{generation_key(desired.generation)}{restart}"
    return f"revision {desired.revision}, checkpoint {desired.model_revision} at {desired.source}{restart}"


def _final(pods: Iterable[PodView], desired: Desired) -> Failure | None:
    for pod in pods:
        reason = _FINAL.get(pod.exit_code or 0)
        wanted = pod.revision == desired.revision and pod.has(desired.model_revision, desired.source)
        if pod.phase is not Phase.RUNNING and reason and wanted:
            return Failure(reason, _last_words(pod), _key(reason, desired))
    return None


def _over_budget(memory: GroupMemory, desired: Desired, now: float) -> Failure | None:
    policy = desired.recovery
    recent = sum(now - death < policy.window_s for death in memory.deaths)
    if recent <= policy.budget:
        return None
    message = (
        f"{recent} restarts within {policy.window_s:g} s, spec.recovery.restartBudget allows {policy.budget}"
        f"{the_last(memory)}"
    )
    return Failure(Reason.BUDGET_EXHAUSTED, message, _key(Reason.BUDGET_EXHAUSTED, desired))


def _last_words(pod: PodView) -> str:
    code = "" if pod.exit_code is None else f" (exit code {pod.exit_code})"
    return f"stage {pod.stage}: {pod.message or 'ended without a message'}{code}"
