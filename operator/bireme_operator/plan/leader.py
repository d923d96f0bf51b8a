"""Every member knows its present leader: a leader that was made anew has another address.

A member that starts again falls back to the leader of its first environment, so this is judged by what the present
start of its process was told, not by what was once said to the pod.
"""

from collections.abc import Iterator

from bireme_operator.plan.actions import TellLeader
from bireme_operator.plan.group import Group
from bireme_operator.plan.observed import Phase


def introduce(group: Group) -> Iterator[TellLeader]:
    """Tell each running member that knows an older leader where the leader is now."""
    leader = group.stages.get(0)
    if leader is None or leader.phase in {Phase.PENDING, Phase.EXITED} or not leader.address:
        return
    for stage, pod in sorted(group.stages.items()):
        if stage != 0 and pod.phase is Phase.RUNNING and pod.told_leader != leader.incarnation:
            yield TellLeader(pod.name, leader.address, leader.incarnation)
