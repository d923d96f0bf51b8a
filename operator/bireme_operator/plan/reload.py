"""Which group changes its checkpoint in place now: one at a time, and only while every group serves that is wanted.

The wish is posted again until the group's own word agrees. A checkpoint that a group has found to be unusable is not
posted to it again before the wish itself is a new one; the others keep theirs too.
"""

from collections.abc import Sequence
from typing import Final

from bireme.wire.state import ReloadRequest
from bireme_operator.plan.actions import ReloadGroup
from bireme_operator.plan.desired import Desired
from bireme_operator.plan.group import RELOAD_PHASES, Group
from bireme_operator.plan.rollout import is_leaving

LONGEST_FINISH_S: Final = 60.0
"""New requests wait while running ones finish under the old weights, so this ends before their clients give up."""


def to_reload(groups: Sequence[Group], desired: Desired) -> list[ReloadGroup]:
    """Return the reload to ask for in this pass, if any."""
    staying = [group for group in groups if not is_leaving(group)]
    under_way = [group for group in staying if group.document and group.document.reload.phase in RELOAD_PHASES]
    if under_way:
        return [_reload(group, desired) for group in under_way if _goes_elsewhere(group, desired)]
    refused = any(group.memory.refuses(desired.generation) for group in staying)
    down = any(group.memory.served and not group.verdict.serving for group in staying)
    if refused or down or sum(group.verdict.serving for group in staying) < desired.replicas:
        return []
    stale = [group for group in staying if group.memory.draining is None and group.stale(desired)]
    stale = [group for group in stale if not group.outdated(desired)]
    ranked = sorted(stale, key=lambda group: (group.running_requests, group.index))
    return [_reload(group, desired) for group in ranked[: max(len(ranked) - desired.rollout.partition, 0)][:1]]


def _goes_elsewhere(group: Group, desired: Desired) -> bool:
    assert group.document is not None
    reload = group.document.reload
    elsewhere = bool(reload.source and desired.source) and reload.source != desired.source
    return elsewhere or reload.model_revision != desired.model_revision


def _reload(group: Group, desired: Desired) -> ReloadGroup:
    request = ReloadRequest(
        source=desired.source,
        model_revision=desired.model_revision,
        mode=desired.reload_mode,
        deadline_s=min(desired.drain_timeout_s, LONGEST_FINISH_S),
        wish=desired.generation,
    )
    return ReloadGroup(group.index, group.stages[0].name, request)
