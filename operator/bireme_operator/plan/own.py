"""What is wanted of one group: the rendering that it was made of, until a rollout makes it anew.

So a group that dies in the middle of a rollout, or that a partition holds back, comes back whole and as it was.
"""

from collections.abc import Sequence
from dataclasses import replace

from bireme_operator.plan.desired import Desired
from bireme_operator.plan.memory import GroupMemory, Purpose
from bireme_operator.plan.observed import PodView


def settled(memory: GroupMemory, pods: Sequence[PodView], desired: Desired) -> GroupMemory:
    """Give a group that knows no rendering of its own the one of its pods or, without any, the one that is wanted."""
    newest = max((pod for pod in pods if not pod.deleting), key=lambda pod: pod.incarnation, default=None)
    made = newest.revision if newest else desired.revision
    return replace(
        memory,
        revision=made if memory.revision is None else memory.revision,
        restart=desired.restart if memory.restart is None else memory.restart,
    )


def came_back(known: GroupMemory, pods: Sequence[PodView]) -> bool:
    """Whether a group that was to be made anew has been, by an operator that ended before it could say so."""
    if known.draining is None or known.draining.purpose is not Purpose.ROLL:
        return False
    living = [pod for pod in pods if not pod.deleting]
    return bool(living) and all(pod.incarnation > known.incarnation(pod.stage) for pod in living)


def as_wanted(desired: Desired, known: GroupMemory) -> Desired:
    """Return what is wanted of one group: what it was made of, until it is rolled."""
    held = known.model_revision not in {"", desired.model_revision} and desired.rollout.partition > 0
    if known.revision in {None, desired.revision} and not held:
        return desired
    return desired.as_made(known.revision or desired.revision, known.model_revision)
