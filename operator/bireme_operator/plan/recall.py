"""A drain that is not wanted any more is taken back, as long as the group is whole: its requests run on where they are.

A scale-down that was cancelled, a rollout that went back to what the group already is, or one that was held. A group
whose successor serves already goes all the same: one of the two has to. Only what this operator asked for is undone; a
stage that was told to end by somebody else drains its group, and that stands.
"""

from collections.abc import Iterator, Sequence

from bireme_operator.plan.actions import UndrainGroup
from bireme_operator.plan.desired import Desired
from bireme_operator.plan.group import Group
from bireme_operator.plan.memory import Purpose
from bireme_operator.plan.observed import Phase
from bireme_operator.plan.rollout import is_leaving
from bireme_operator.plan.scale import wanted_count


def taken_back(groups: Sequence[Group], desired: Desired, now: float) -> list[Group]:
    """Return the groups that are drained and are to serve on."""
    if all(group.memory.draining is None for group in groups):
        return []
    rolled = _rolled_for_nothing(groups, desired)
    missing = wanted_count(groups, desired, now) - sum(not is_leaving(group) for group in groups)
    left = [group for group in groups if _goes(group, Purpose.SCALE_DOWN)]
    useful = [group for group in left if _is_whole(group) and not group.moving and not group.outdated(desired)]
    busiest = sorted(useful, key=lambda group: (-group.running_requests, group.index))
    return [*rolled, *busiest[: max(missing, 0)]]


def undrain(group: Group) -> Iterator[UndrainGroup]:
    """Tell a leader whose drain was taken back, until it says itself that it drains no more."""
    leader = group.stages.get(0)
    if leader is None or leader.name != group.memory.recalled or group.deleting:
        return
    if group.document is not None and group.document.draining:
        yield UndrainGroup(group.index, leader.name)


def _rolled_for_nothing(groups: Sequence[Group], desired: Desired) -> list[Group]:
    """Return the groups that are to be made anew and need not be, or may not be now that the rollout is held."""
    rolled = [group for group in groups if _goes(group, Purpose.ROLL)]
    old = [group for group in groups if group.outdated(desired) and not is_leaving(group)]
    allowed = max(len(old) - desired.rollout.partition, 0)
    late = [group for group in rolled if group.outdated(desired)][allowed:]
    current = [group for group in rolled if not group.outdated(desired)]
    return [group for group in [*current, *late] if _is_whole(group)]


def _goes(group: Group, purpose: Purpose) -> bool:
    return group.memory.draining is not None and group.memory.draining.purpose is purpose


def _is_whole(group: Group) -> bool:
    """Whether nothing of the group was ended yet, and its leader can be told."""
    running = all(pod.phase is Phase.RUNNING and not pod.node_lost for pod in group.stages.values())
    return running and len(group.stages) == group.size and not group.deleting and group.document is not None
