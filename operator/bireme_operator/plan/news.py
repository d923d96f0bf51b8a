"""What is worth telling: transitions, once each. Events in a cluster, lines of `bireme up` on a laptop."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from bireme.names import Event, GroupState, Reason
from bireme_operator.plan.actions import Action, AdoptSpare, CreatePod, made_by_group
from bireme_operator.plan.group import Verdict
from bireme_operator.plan.memory import GroupMemory, Memory, Progress

_MISSING: Final = (Reason.QUOTA, Reason.NO_CAPACITY, Reason.UNSCHEDULABLE, Reason.NATIVE_GANG_IGNORED)
_WHOLE: Final = frozenset({GroupState.SERVING, GroupState.RELOADING})


@dataclass(frozen=True)
class News:
    """One transition of one group, or of the deployment as a whole: then ``group`` is None."""

    event: Event
    group: int | None
    message: str


def news(before: Memory, after: Memory, actions: Sequence[Action], verdicts: Mapping[int, Verdict]) -> Iterator[News]:
    """Compare what was remembered with what is, and name what is made. ``verdicts`` have what is said of each group."""
    made = made_by_group(actions)
    for index, now in after.groups.items():
        if before.groups.get(index) is now and index not in made:
            continue
        yield from _of_group(before.groups.get(index), now, made.get(index, []), verdicts.get(index))
    for index in before.groups.keys() - after.groups.keys():
        yield News(Event.GROUP_DRAINED, index, "no request was left, the stages are gone")
    if after.progress is not None:
        yield from _of_canary(before.progress, after.progress)


def _of_canary(before: Progress | None, now: Progress) -> Iterator[News]:
    old = before if before is not None and before.key == now.key else Progress(now.key, now.since)
    if now.trial_since is not None and old.trial_since is None:
        yield News(Event.CANARY_STARTED, None, f"groups that serve revision {now.key}: {now.updated}")
    if now.passed and not old.passed:
        yield News(Event.CANARY_PASSED, None, now.passed)
    if now.failed and not old.failed and now.failed_by is Reason.CANARY_FAILED:
        yield News(Event.CANARY_FAILED, None, now.failed)


def _of_group(
    before: GroupMemory | None, now: GroupMemory, made: Sequence[CreatePod | AdoptSpare], verdict: Verdict | None
) -> Iterator[News]:
    old = before.state if before else None
    if before is None:
        yield News(Event.GROUP_CREATED, now.index, f"{len(made)} stages")
    else:
        for pod in made:
            how = "is taken over by the spare" if isinstance(pod, AdoptSpare) else "is made anew as"
            yield News(Event.STAGE_REPLACED, now.index, f"stage {pod.stage} {how} {pod.name}")
        if now.restarts > before.restarts and not made and now.leaving <= before.leaving:
            yield News(Event.STAGE_RESTARTED, now.index, now.last_death)
    if now.asked and now.draining is None and (before is None or now.asked != before.asked):
        yield News(Event.GROUP_MOVES, now.index, f"it {now.asked}; it is made elsewhere first where there is room")
    if now.state is not old:
        yield from _of_state(old, now, verdict)
    if before is not None:
        yield from _of_checkpoint(before, now)


def _of_checkpoint(before: GroupMemory, now: GroupMemory) -> Iterator[News]:
    """By what is served, never by the states on the way: a reload may fail, and may be too quick to be seen."""
    if now.announced and before.announced and now.announced != before.announced:
        yield News(Event.GROUP_RELOADED, now.index, f"model revision {now.announced}")
    if now.refused is not None and now.refused != before.refused:
        yield News(Event.GROUP_RELOAD_FAILED, now.index, now.refused.message)


def _of_state(old: GroupState | None, now: GroupMemory, verdict: Verdict | None) -> Iterator[News]:
    if now.state is GroupState.SERVING:
        if old is not GroupState.RELOADING:
            took = "" if now.total_s is None else f" after {now.total_s:.1f} s"
            yield News(Event.GROUP_SERVING, now.index, f"epoch {now.epoch}{took}")
    elif now.state is GroupState.PENDING and verdict is not None and verdict.reason in _MISSING:
        yield News(Event.GROUP_WAITS, now.index, f"{verdict.reason}: {verdict.message}")
    elif now.state is GroupState.FAILED and now.failure:
        yield News(Event.GROUP_FAILED, now.index, f"{now.failure.reason}: {now.failure.message}")
    elif old in _WHOLE and now.state not in {GroupState.DRAINING, *_WHOLE}:
        told = f"{verdict.reason}: {verdict.message}" if verdict and verdict.message else now.last_death
        yield News(Event.GROUP_LOST_PART, now.index, told or now.state)
