"""All stages of a group or none: which stage pods to make and which to end, so that half a group never lasts.

Missing stages are made in one pass, the leader first, because the others need its address. A wait after a death holds
the whole group. A pod is replaced without waiting for its predecessor to be gone: names and addresses differ. Where a
group is made anew as a whole, the pods of its earlier making are ended by `fence`.
"""

from collections.abc import Iterator
from typing import Final

from bireme.names import Env
from bireme_operator.plan.actions import CreatePod, DeletePod
from bireme_operator.plan.desired import Desired
from bireme_operator.plan.gates import is_stuck
from bireme_operator.plan.group import Group
from bireme_operator.plan.observed import Phase, PodView
from bireme_operator.plan.recovery import is_spent, wait_of

LOST_GRACE_S: Final = 1.0
"""Grace of a pod that is lost, hung or superseded: nothing of it is worth waiting for."""
STOP_GRACE_S: Final = 10.0
"""Grace of a pod that may end its work in order."""


def fence(group: Group) -> Iterator[DeletePod]:
    """End every pod that a newer incarnation of its stage has superseded, or whose stage is not wanted."""
    for pod in group.surplus:
        yield DeletePod(pod.name, LOST_GRACE_S, "superseded by a newer incarnation, or its stage is not wanted")


def clear(group: Group) -> Iterator[DeletePod]:
    """End what still runs of a failed group: its devices are free for others, its exited pods stay as evidence."""
    for pod in group.living:
        if pod.phase is not Phase.EXITED:
            yield DeletePod(pod.name, STOP_GRACE_S, f"the group failed: {group.verdict.reason}")


def repair(group: Group, desired: Desired, now: float) -> Iterator[CreatePod | DeletePod]:
    """End spent pods and make the missing stages, as soon as the backoff of the group allows."""
    spent = [pod for pod in group.stages.values() if is_spent(pod)]
    for pod in spent:
        yield DeletePod(pod.name, LOST_GRACE_S, _why(pod))
    if is_stuck(group, now):
        yield from _take_back(group)
        return
    if wait_of(group.memory, desired.recovery, now).until > now:
        return
    missing = set(range(desired.stages)) - (group.stages.keys() - {pod.stage for pod in spent})
    alone = len(missing) == desired.stages
    for stage in sorted(missing):
        yield _create(group, stage, desired, alone=alone)


def _take_back(group: Group) -> Iterator[DeletePod]:
    """End what was let go and found no node; of a group that never served also what did, for it holds devices."""
    for pod in group.stages.values():
        if not is_spent(pod) and (not pod.node or not group.memory.served):
            yield DeletePod(pod.name, LOST_GRACE_S, "no node takes the whole group after all")


def _why(pod: PodView) -> str:
    if pod.stranded:
        return "it waits, and was kept off a node that is open again"
    return f"node {pod.node} is lost" if pod.node_lost else f"stage {pod.stage} ended: {pod.message or pod.exit_code}"


def _create(group: Group, stage: int, desired: Desired, *, alone: bool) -> CreatePod:
    """Make one stage, of what its surviving peers serve: a checkpoint that is still to be loaded may be no good."""
    incarnation = group.memory.making or group.memory.incarnation(stage) + 1
    environment, model_revision = desired.pod_environment(group.index, stage, incarnation), desired.model_revision
    if group.memory.source and not alone:
        model_revision = group.memory.model_revision
        environment |= {Env.MODEL_PATH: group.memory.source, Env.MODEL_REVISION: model_revision}
    return CreatePod(
        desired.pod_name(group.index, stage, incarnation),
        group.index,
        stage,
        incarnation,
        desired.revision,
        model_revision,
        environment,
        group.memory.image or desired.image_of(desired.revision),
    )
