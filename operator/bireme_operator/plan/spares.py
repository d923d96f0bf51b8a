"""Standby pods: they hold a stage's devices with the checkpoint's files in memory, and take the place of a lost stage.

A spare is nobody's pod until then: no budget, no route and no count knows it. It is made of what is wanted now, so a
group of another revision or image gets a new pod instead. A group that never served and one that is made anew as a
whole take none: spares are for what is lost. Where stages must be near one another, a spare serves the groups of its
own domain.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from bireme.names import Env, Exit, Reason
from bireme.wire.state import AdoptRequest
from bireme_operator.plan.actions import Action, AdoptSpare, Become, CreatePod, CreateSpare, EndSpare
from bireme_operator.plan.desired import Desired
from bireme_operator.plan.group import Group
from bireme_operator.plan.memory import Memory
from bireme_operator.plan.observed import Observed, Phase, PodView
from bireme_operator.plan.recovery import is_spent
from bireme_operator.plan.scale import NO_ROOM_S

_NO_ROOM: Final = (Reason.NO_CAPACITY, Reason.UNSCHEDULABLE, Reason.QUOTA)
_HOPELESS: Final = (Exit.BAD_CONFIGURATION, Exit.BAD_CHECKPOINT)
"""The next one would end like this; the stages of the groups will say so too."""


@dataclass(frozen=True)
class Spared:
    """The actions with the spares in them, and the highest number that any spare has had."""

    actions: tuple[Action, ...]
    highest: int


def with_spares(
    actions: Sequence[Action],
    groups: Sequence[Group],
    desired: Desired,
    observed: Observed,
    memory: Memory,
    *,
    now: float,
) -> Spared:
    """Let spares take over what would be made anew, and see to it that there are as many as are wanted.

    There are none while a group lacks room: one may have the place of the very group that it is to help.
    """
    highest = max([memory.spares, *(pod.incarnation for pod in observed.spares)])
    living = [pod for pod in observed.spares if not pod.deleting]
    useful = [pod for pod in living if pod.incarnation > memory.stale_spares and _is_useful(pod, desired)]
    done = _taken_over(actions, groups, desired, observed, useful)
    adopted = {action.name for action in done if isinstance(action, AdoptSpare)}
    left = [pod for pod in useful if pod.name not in adopted]
    needed = any(now >= due for due in room_times(groups))
    wanted = 0 if desired.stopping or needed or not desired.replicas else desired.spares
    left.sort(key=lambda pod: (not _stands_by(pod), pod.incarnation))
    useless = [pod for pod in living if pod not in useful]
    surplus = [*useless, *left[wanted:]]
    ended = [
        EndSpare(pod.name, "it can take nobody's place, a group needs its room, or fewer are wanted") for pod in surplus
    ]
    missing = 0 if observed.no_more_spares else max(wanted - len(left), 0)
    made = [_create(desired, highest + 1 + number) for number in range(missing)]
    return Spared((*done, *ended, *made), highest + missing)


def room_times(groups: Sequence[Group]) -> Iterator[float]:
    """Yield from when on a group that finds no room needs what the spares have."""
    for group in groups:
        down = group.memory.down_since
        waits = group.verdict.reason in _NO_ROOM and not (group.memory.draining or group.memory.failure)
        if waits and down is not None:
            yield down + NO_ROOM_S


def become(group: Group, desired: Desired) -> Iterator[Become]:
    """Tell each pod that was a spare who it is, until it is heard as that."""
    leader = group.stages.get(0)
    if leader is None or not leader.address:
        return
    known = group.memory
    source = known.source or desired.environment.get(Env.MODEL_PATH, "")
    revision = known.model_revision if known.source else desired.model_revision
    for stage, pod in sorted(group.stages.items()):
        if pod.stands_by:
            place = desired.group_uid(group.index), group.index, stage, pod.incarnation
            yield Become(pod.name, leader.incarnation, AdoptRequest(*place, leader.address, source, revision))


def _taken_over(
    actions: Sequence[Action],
    groups: Sequence[Group],
    desired: Desired,
    observed: Observed,
    useful: Sequence[PodView],
) -> list[Action]:
    ready = sorted((pod for pod in useful if _stands_by(pod)), key=lambda pod: pod.incarnation)
    served = {group.index: group for group in groups if group.memory.served and not desired.recovery.whole}
    done: list[Action] = []
    for action in actions:
        spare = None
        if isinstance(action, CreatePod) and action.group in served and _is_alike(action, desired):
            lost = served[action.group]
            spare = next((pod for pod in ready if _is_beside(pod, lost, desired, observed)), None)
        if spare is None or not isinstance(action, CreatePod):
            done.append(action)
            continue
        ready.remove(spare)
        place = action.group, action.stage, action.incarnation, action.model_revision
        done.append(AdoptSpare(spare.name, *place, spare.deaths))
    return done


def _is_alike(lost: CreatePod, desired: Desired) -> bool:
    return (lost.revision, lost.image) == (desired.revision, desired.image_of(desired.revision))


def _is_beside(spare: PodView, group: Group, desired: Desired, observed: Observed) -> bool:
    """Whether a spare is in the domains that all stages of the group must share with those that are left of it."""
    keys = desired.topology.required
    if not keys:
        return True
    left = [pod for pod in group.stages.values() if pod.node and not is_spent(pod)]
    homes = [_domain(observed.labels.get(pod.node, {}), keys) for pod in [spare, *left]]
    return bool(left) and "" not in homes[0] and len(set(homes)) == 1


def _domain(labels: Mapping[str, str], keys: Sequence[str]) -> tuple[str, ...]:
    return tuple(labels.get(key, "") for key in keys)


def _is_useful(pod: PodView, desired: Desired) -> bool:
    ended = pod.phase is Phase.EXITED and pod.exit_code not in _HOPELESS
    gone = ended or pod.node_lost or pod.node_leaving or pod.stranded
    return pod.revision == desired.revision and not gone


def _stands_by(pod: PodView) -> bool:
    return pod.phase is Phase.RUNNING and pod.ready


def _create(desired: Desired, number: int) -> CreateSpare:
    name = hashlib.sha256(f"{desired.uid}/spare/{number}".encode()).hexdigest()[:8]
    return CreateSpare(
        f"{desired.name}-spare-{name}",
        number,
        desired.revision,
        desired.model_revision,
        desired.environment,
        desired.image_of(desired.revision),
    )
