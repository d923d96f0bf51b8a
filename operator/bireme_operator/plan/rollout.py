"""Which groups get the new rendering or checkpoint now: drained, deleted and made again, one at a time.

Unready groups go first and all at once: replacing them costs no capacity, and a bad first rollout must not block its
own fix. A ready group goes only while every other group serves, so a bad revision stops after one group.
"""

from collections.abc import Sequence

from bireme_operator.plan.desired import Desired
from bireme_operator.plan.group import Group
from bireme_operator.plan.scale import is_leaving


def to_roll(groups: Sequence[Group], desired: Desired) -> list[int]:
    """Return the outdated groups to drain in this pass."""
    staying = [group for group in groups if not is_leaving(group)]
    outdated = [group for group in staying if group.memory.draining is None and group.outdated(desired)]
    unready = [group.index for group in outdated if not group.verdict.serving]
    if unready:
        return unready
    if not outdated or any(not group.verdict.serving for group in staying):
        return []
    return [min(outdated, key=lambda group: (group.running_requests, group.index)).index]
