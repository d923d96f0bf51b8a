"""What is wanted of one group: the rendering that it was made of, until a rollout makes it anew.

So a group that dies in the middle of a rollout, or that a partition holds back, comes back whole and as it was.
"""

from collections.abc import Container, Mapping, Sequence
from dataclasses import replace

from bireme_operator.plan.desired import Desired
from bireme_operator.plan.group import Group
from bireme_operator.plan.memory import GroupMemory, updated
from bireme_operator.plan.observed import PodView


def settled(memory: GroupMemory, pods: Sequence[PodView], desired: Desired) -> GroupMemory:
    """Give a group that knows no rendering of its own the one of its pods or, without any, the one that is wanted."""
    newest = max((pod for pod in pods if not pod.deleting), key=lambda pod: pod.incarnation, default=None)
    made = newest.revision if newest else desired.revision
    revision = made if memory.revision is None else memory.revision
    image = (newest.image if newest else "") or desired.image_of(revision)
    return updated(
        memory,
        revision=revision,
        restart=desired.restart if memory.restart is None else memory.restart,
        image=image if memory.image is None else memory.image,
    )


def as_before(new: Sequence[GroupMemory], groups: Sequence[Group], desired: Desired, good: str) -> list[GroupMemory]:
    """Give new groups the rendering ``good`` of before, as long as fewer than `partition` of the others have it.

    A group that is built because one is to leave its node, or because more are wanted, jumps no rollout.
    """
    before = desired.history.get(good)
    if before is None or before.key == desired.rendering.key:
        return list(new)
    staying = [group for group in groups if group.memory.draining is None]
    old = sum(not group.moving and not group.current(desired) for group in staying)
    short = max(desired.rollout.partition - old, 0)
    held = [replace(known, revision=before.revision, model_revision=before.model_revision) for known in new[:short]]
    return [*held, *new[short:]]


def as_wanted(desired: Desired, known: GroupMemory) -> Desired:
    """Return what is wanted of one group: what it was made of, until it is rolled."""
    other = known.model_revision not in {"", desired.model_revision}
    held = other and (desired.rollout.partition > 0 or known.refuses(desired.generation))
    if known.revision in {None, desired.revision} and not held:
        return desired
    return desired.as_made(known.revision or desired.revision, known.model_revision)


def guarded(desired: Desired, groups: Mapping[int, GroupMemory], staying: Container[int]) -> dict[int, int]:
    """Return how many stages of each group a disruption budget has to guard; 0 of one that never served.

    A group that goes for good is in it only while it is ``staying``, with a pod that nobody has asked to end: then
    there is nothing to guard any more, and the end of each pod would be counted in its budget.
    """
    return {
        index: as_wanted(desired, known).stages if known.served else 0
        for index, known in groups.items()
        if index in staying or not (known.draining and known.draining.for_good)
    }
