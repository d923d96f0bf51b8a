"""How many groups, and which ones go first.

The least useful group goes first: one on trial beyond what was asked for, then a failed or unready one, then one whose
node is to be emptied, then an outdated one, then one that never served, then the one with the fewest requests, then
the youngest index. A group that is being drained to go does not come back; another takes its place.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from bireme.names import GroupState
from bireme_operator.plan.desired import Desired
from bireme_operator.plan.group import DOUBTED_S, Group
from bireme_operator.plan.rollout import is_leaving, surge

NO_ROOM_S: Final = 30.0
"""A successor that has found no place for so long is not waited for any longer, as far as `disruption` allows."""
HURRY_S: Final = 12.0
"""So long before its node goes a group is drained whether its successor serves or not: its streams go on elsewhere."""


def wanted_count(groups: Sequence[Group], desired: Desired, now: float) -> int:
    """Return how many groups there should be: more than `spec.replicas` while any is to be had elsewhere or anew.

    They are built before the others go, so a cordon costs no capacity where there is room.
    """
    staying = [group for group in groups if not is_leaving(group)]
    moving = [group for group in staying if group.moving]
    down = sum(now >= _down_for_good(group) for group in moving)
    # Those that don't serve cost nothing to lose, and whose node goes is lost in any case.
    places = down + min(len(moving) - down, max(desired.unavailable_groups, 1))
    places = max(places, sum(group.leave_by > 0 for group in moving))
    return desired.replicas + max(places, surge(staying, desired)) * (desired.replicas > 0)


def _down_for_good(group: Group) -> float:
    """Since when a group is not expected to serve again by itself in a moment; never for one that serves."""
    down = group.memory.down_since
    return float("inf") if group.verdict.serving or group.in_doubt or down is None else down + DOUBTED_S


def to_remove(groups: Sequence[Group], desired: Desired, now: float) -> list[int]:
    """Return the groups to drain, least useful first, so that no more than are wanted stay."""
    staying = [group for group in groups if not is_leaving(group)]
    excess = len(staying) - wanted_count(groups, desired, now)
    if excess <= 0 and not any(group.moving for group in staying):
        return []
    ranked = sorted(
        staying,
        key=lambda group: (
            group.verdict.serving,
            not group.moving,
            group.current(desired),
            group.memory.served,
            group.running_requests,
            -group.index,
        ),
    )
    if desired.replicas and any(group.in_doubt for group in staying):
        return _hurried(ranked, now)  # who is the least useful is known in a moment, and some have no more than that
    if excess > 0:
        return list(dict.fromkeys(group.index for group in (*_untried(ranked, desired), *ranked)))[:excess]
    return _hurried(ranked, now) or _moved(ranked, desired) or _stopped(ranked, desired, now)


def _untried(ranked: Sequence[Group], desired: Desired) -> Sequence[Group]:
    """Return what is on trial beyond what was asked for: a canary that moved and whose move was taken back is two."""
    new = [group for group in ranked if group.current(desired) and not group.moving]
    return new[: max(len(new) - desired.rollout.trial, 0)] if desired.rollout.trial else ()


def _hurried(ranked: Sequence[Group], now: float) -> list[int]:
    """Return the groups whose nodes go in a moment, whatever the budget is: who stays is lost."""
    return [group.index for group in ranked if group.moving and 0 < group.leave_by <= now + HURRY_S]


def _moved(ranked: Sequence[Group], desired: Desired) -> list[int]:
    """Return the groups whose successors serve: as many as the others can do without. Nobody waits for a failed one."""
    failed = sum(group.memory.failure is not None and not group.moving for group in ranked)
    spare = sum(group.verdict.serving for group in ranked) - max(desired.replicas - failed, 0)
    gone: list[int] = []
    for group in ranked:
        if group.moving and spare >= group.verdict.serving:
            spare -= group.verdict.serving
            gone.append(group.index)
    return gone


def _stopped(ranked: Sequence[Group], desired: Desired, now: float) -> list[int]:
    """Return the groups to stop although no successor serves: nobody has room for it, and the budget has.

    What they leave is on a node that is to be emptied, so it is no room for others; the successor waits on. A group
    that may stay is not stopped: nobody but itself would gain by it.
    """
    serving = sum(group.verdict.serving for group in ranked)
    waiting = sum(_lacks_room(group, now) for group in ranked)
    allowed = min(desired.unavailable_groups - (desired.replicas - serving), serving - 1, waiting)
    movers = [one.index for one in ranked if one.moving and one.verdict.serving and not one.may_stay]
    return movers[: max(allowed, 0)]


def _lacks_room(group: Group, now: float) -> bool:
    return _is_pending(group) and now - group.memory.since >= NO_ROOM_S


def _is_pending(group: Group) -> bool:
    is_new = not group.moving and not group.memory.served
    return is_new and group.verdict.state is group.memory.state is GroupState.PENDING


def leave_times(groups: Sequence[Group], now: float) -> Iterator[float]:
    """Yield when a group that is to leave has no more time or is down for good, or a successor has waited enough."""
    yield from (due for group in groups if group.moving and now < (due := _down_for_good(group)) < float("inf"))
    yield from (due for group in groups if group.leave_by and (due := group.leave_by - HURRY_S) > now)
    if any(group.moving for group in groups):
        yield from (until for group in groups if _is_pending(group) and (until := group.memory.since + NO_ROOM_S) > now)


def to_add(groups: Sequence[Group], desired: Desired, now: float) -> list[int]:
    """Return the lowest free indices for the groups that are missing."""
    taken = {group.index for group in groups}
    missing = wanted_count(groups, desired, now) - sum(not is_leaving(group) for group in groups)
    free = (index for index in range(desired.replicas + 1 + len(taken)) if index not in taken)
    return [index for index, _ in zip(free, range(missing), strict=False)]
