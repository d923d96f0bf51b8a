"""How many groups, and which ones go first.

The least useful group goes first: a failed or unready one, then an outdated one, then the one with the fewest
requests, then the youngest index. A group that is being drained to go does not come back; another takes its place.
"""

from collections.abc import Sequence

from bireme_operator.plan.desired import Desired
from bireme_operator.plan.group import Group
from bireme_operator.plan.memory import Purpose


def is_leaving(group: Group) -> bool:
    """Whether the group is on its way out for good (a rollout brings it back under its index)."""
    return group.memory.draining is not None and group.memory.draining.purpose is not Purpose.ROLL


def to_remove(groups: Sequence[Group], desired: Desired) -> list[int]:
    """Return the groups to drain, least useful first, so that ``desired.replicas`` stay."""
    staying = [group for group in groups if not is_leaving(group)]
    ranked = sorted(
        staying,
        key=lambda group: (
            group.verdict.serving,
            not group.outdated(desired),
            group.running_requests,
            -group.index,
        ),
    )
    return [group.index for group in ranked[: max(len(staying) - desired.replicas, 0)]]


def to_add(groups: Sequence[Group], desired: Desired) -> list[int]:
    """Return the lowest free indices for the groups that are missing."""
    taken = {group.index for group in groups}
    missing = desired.replicas - sum(not is_leaving(group) for group in groups)
    free = (index for index in range(desired.replicas + len(taken)) if index not in taken)
    return [index for index, _ in zip(free, range(missing), strict=False)]
