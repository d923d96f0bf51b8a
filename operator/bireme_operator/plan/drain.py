"""Before every voluntary end of a group: refuse new work, let running requests finish, then delete.

The worker does the draining; here it is only asked for, watched and, once the time is over, ended. A group that never
served or whose leader is gone has nothing to finish.
"""

from collections.abc import Iterator
from typing import Final

from bireme_operator.plan.actions import DeletePod, DrainGroup
from bireme_operator.plan.desired import Desired
from bireme_operator.plan.gang import STOP_GRACE_S
from bireme_operator.plan.group import Group
from bireme_operator.plan.observed import Phase, PodView

_CLOCKS_S: Final = 2.0
"""Grace ends by the API server's clock, and in whole seconds."""
HANDOVER_S: Final = 5.0
"""After the deadline the leader hands its streams over; only when that takes longer are the pods ended regardless."""


def handover_times(group: Group, desired: Desired) -> tuple[float, float]:
    """Return when the group's running requests are handed over, and when its pods are ended regardless."""
    assert group.memory.draining is not None
    deadline = group.memory.draining.since + desired.drain_timeout_s
    if group.leave_by:
        deadline = min(deadline, group.leave_by - 2 * HANDOVER_S)
    return deadline, deadline + HANDOVER_S


def drain(group: Group, desired: Desired, now: float) -> Iterator[DrainGroup | DeletePod]:
    """Take the next step of a drain that is under way."""
    deadline, end = handover_times(group, desired)
    if group.stranger and now < end:  # nobody can ask it; told to end, it lets its requests finish by itself
        yield DeletePod(group.stages[0].name, max(end - now, STOP_GRACE_S), "the group is to go")
        return
    if _still_ends(group, now) and now < end:
        return
    if not desired.custom and _has_work(group) and now < end:
        if group.document is not None and not group.document.draining:
            yield DrainGroup(group.index, group.stages[0].name, max(deadline - now, 0.0))
        return
    # An engine that is not ours is not asked to drain: it has its grace period for that.
    grace_s, why = (desired.drain_timeout_s, "is to go") if desired.custom else (STOP_GRACE_S, "is drained")
    for pod in group.living:
        yield DeletePod(pod.name, grace_s, f"the group {why}")


def _still_ends(group: Group, now: float) -> bool:
    """Whether a leader that was told to end lets its last requests finish: the other stages compute them.

    One that has outlived its grace is on a dead node, or will not end by itself.
    """
    ends = (pod for pod in group.deleting if pod.stage == 0 and pod.phase is Phase.RUNNING)
    return 0 not in group.stages and any(now < over_at(pod) for pod in ends)


def over_at(pod: PodView) -> float:
    """Return when a pod that was told to end has ended; what is still there then is on a dead node."""
    return pod.end_by + _CLOCKS_S


def _has_work(group: Group) -> bool:
    """Whether requests may still run. A leader that runs but can't be heard may have some."""
    leader = group.stages.get(0)
    if not group.memory.served or leader is None or leader.phase is not Phase.RUNNING:
        return False
    return group.document is None or not group.document.draining or group.running_requests > 0
