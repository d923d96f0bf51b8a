"""What is worked towards when a rollout has failed: the last rendering with which all groups served, or a standstill.

The spec is never written: it is its owner's. A failed rollout stays given up until the spec asks for something else.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from bireme_operator.plan.canary import held_back, note
from bireme_operator.plan.desired import Desired
from bireme_operator.plan.group import Group
from bireme_operator.plan.judgement import Judgement
from bireme_operator.plan.memory import Memory, Progress
from bireme_operator.plan.rollout import is_leaving, track

_EVERY_GROUP: Final = 1 << 20


def gave_up(desired: Desired, memory: Memory) -> Progress | None:
    """Return the failed rollout to what is wanted now, if there was something that served before it."""
    known = memory.progress
    if known is None or not known.failed or known.key != desired.rendering.key or known.resume != desired.resume:
        return None
    return known if memory.good and memory.good != known.key else None


def target(desired: Desired, memory: Memory, refusal: str = "") -> Desired:
    """Return what is worked towards now; after a ``refusal``, that all groups stay what they are and are kept alive."""
    good = desired.history.get(memory.good)
    if refusal and good is not None:
        return replace(desired.with_rendering(good), rollout=replace(desired.rollout, partition=_EVERY_GROUP))
    if gave_up(desired, memory) is None:
        return held_back(desired, memory)
    if desired.rollout.roll_back and good is not None:
        # What is held back by `partition` is what it goes back to: nothing of that holds now.
        return replace(desired.with_rendering(good), rollout=replace(desired.rollout, partition=0))
    return replace(desired, rollout=replace(desired.rollout, partition=_EVERY_GROUP))


def is_at_rest(desired: Desired, memory: Memory, refusal: str) -> bool:
    """Whether nothing may be done: it is paused, or can't be made and nothing that served before is known."""
    return desired.paused or (bool(refusal) and memory.good not in desired.history)


def remember_rollout(
    memory: Memory, groups: Sequence[Group], wish: Desired, judged: Judgement | None, now: float
) -> Memory:
    """Note how far the rollout is, what its canary is worth, and the rendering with which every group serves."""
    if gave_up(wish, memory) is not None:
        return memory
    desired = held_back(wish, memory)
    staying = [group for group in groups if not is_leaving(group)]
    done = bool(staying) and len(staying) == desired.replicas and not desired.rollout.trial
    done = done and all(group.verdict.serving and group.current(desired) for group in staying)
    # What a dead node keeps of a group that goes serves nobody.
    done = done and not any(group.living for group in groups if is_leaving(group))
    good = desired.rendering.key if done else memory.good
    progress = note(track(memory.progress, groups, desired, now), judged, desired, now)
    return replace(memory, progress=progress, good=good)
