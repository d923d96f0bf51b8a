"""How many groups, and which ones go first.

The least useful group goes first: a failed or unready one, then one whose node is to be emptied, then an outdated one,
then the one with the fewest requests, then the youngest index. A group that is being drained to go does not come back;
another takes its place.
"""

from collections.abc import Sequence

from bireme_operator.plan.desired import Desired
from bireme_operator.plan.group import Group
from bireme_operator.plan.rollout import is_leaving, surge


def wanted_count(groups: Sequence[Group], desired: Desired) -> int:
    """Return how many groups there should be: more than `spec.replicas` while any is to be had elsewhere or anew.

    They are built before the others go, so a cordon costs no capacity; where there is no room, nothing goes.
    """
    staying = [group for group in groups if not is_leaving(group)]
    moving = any(group.moving for group in staying)
    return desired.replicas + max(int(moving), surge(staying, desired)) * (desired.replicas > 0)


def to_remove(groups: Sequence[Group], desired: Desired) -> list[int]:
    """Return the groups to drain, least useful first, so that no more than are wanted stay."""
    staying = [group for group in groups if not is_leaving(group)]
    ranked = sorted(
        staying,
        key=lambda group: (
            group.verdict.serving,
            not group.moving,
            group.current(desired),
            group.running_requests,
            -group.index,
        ),
    )
    if desired.replicas and any(group.in_doubt for group in staying):
        return []  # who is the least useful is known in a moment
    excess = len(staying) - wanted_count(groups, desired)
    return [group.index for group in ranked[:excess]] if excess > 0 else _moved(ranked, desired)


def _moved(ranked: Sequence[Group], desired: Desired) -> list[int]:
    """Return the group whose successor serves: one at a time, and only while every other group serves."""
    movers = [group.index for group in ranked if group.moving]
    others = [group for group in ranked if not group.moving]
    built = len(ranked) > desired.replicas and others and all(group.verdict.serving for group in others)
    return movers[:1] if built else []


def to_add(groups: Sequence[Group], desired: Desired) -> list[int]:
    """Return the lowest free indices for the groups that are missing."""
    taken = {group.index for group in groups}
    missing = wanted_count(groups, desired) - sum(not is_leaving(group) for group in groups)
    free = (index for index in range(desired.replicas + 1 + len(taken)) if index not in taken)
    return [index for index, _ in zip(free, range(missing), strict=False)]
