"""What is worth telling: transitions, once each. Events in a cluster, lines of `bireme up` on a laptop."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bireme.names import Event, GroupState
from bireme_operator.plan.actions import Action, CreatePod
from bireme_operator.plan.memory import GroupMemory, Memory


@dataclass(frozen=True)
class News:
    """One transition of one group."""

    event: Event
    group: int
    message: str


def news(before: Memory, after: Memory, actions: Sequence[Action]) -> Iterator[News]:
    """Compare what was remembered with what is, and name what is made."""
    for index, now in after.groups.items():
        made = [action for action in actions if isinstance(action, CreatePod) and action.group == index]
        yield from _of_group(before.groups.get(index), now, made)
    for index in before.groups.keys() - after.groups.keys():
        yield News(Event.GROUP_DRAINED, index, "no request was left, the stages are gone")


def _of_group(before: GroupMemory | None, now: GroupMemory, made: Sequence[CreatePod]) -> Iterator[News]:
    old = before.state if before else None
    if before is None:
        yield News(Event.GROUP_CREATED, now.index, f"{len(made)} stages")
    else:
        for pod in made:
            yield News(Event.STAGE_REPLACED, now.index, f"stage {pod.stage} is made anew as {pod.name}")
        if now.restarts > before.restarts and not made and now.leaving <= before.leaving:
            yield News(Event.STAGE_RESTARTED, now.index, now.last_death)
    if now.state is old:
        return
    if old is GroupState.RELOADING and now.state is GroupState.SERVING:
        yield News(Event.GROUP_RELOADED, now.index, f"model revision {now.model_revision}")
    elif now.state is GroupState.SERVING:
        took = "" if now.total_s is None else f" after {now.total_s:.1f} s"
        yield News(Event.GROUP_SERVING, now.index, f"epoch {now.epoch}{took}")
    elif now.state is GroupState.FAILED and now.failure:
        yield News(Event.GROUP_FAILED, now.index, f"{now.failure.reason}: {now.failure.message}")
    elif old is GroupState.SERVING and now.state not in {GroupState.DRAINING, GroupState.RELOADING}:
        yield News(Event.GROUP_LOST_PART, now.index, now.last_death or now.state)
