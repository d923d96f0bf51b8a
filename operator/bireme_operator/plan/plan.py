"""The planner: one look in, the actions that bring what is seen nearer to what is wanted out.

Level-triggered: nothing depends on which event caused the look, and a look at a settled world plans nothing. The order
of the policies is the order below: charge deaths, scale, roll, each group by itself, reload.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from bireme.api.status import Status
from bireme_operator.plan.actions import Action, AdoptSpare, CreatePod, DeletePod, made_by_group
from bireme_operator.plan.canary import assess, held_back
from bireme_operator.plan.desired import Desired
from bireme_operator.plan.drain import drain, handover_times, over_at
from bireme_operator.plan.fallback import gave_up, is_at_rest, remember_rollout, target
from bireme_operator.plan.gang import clear, fence, repair
from bireme_operator.plan.gates import RETRY_S, SPARE_RETRY_S, STUCK_S, allot
from bireme_operator.plan.group import Group, look, remember_seen, remember_verdict
from bireme_operator.plan.images import images_needed, remember_images
from bireme_operator.plan.leader import introduce
from bireme_operator.plan.memory import Draining, GroupMemory, Memory, Purpose, updated
from bireme_operator.plan.naming import bound, remember_names
from bireme_operator.plan.news import News, news
from bireme_operator.plan.observed import SILENT_AFTER_S, WATCH_INTERVAL_S, Observed
from bireme_operator.plan.own import as_before, as_wanted, settled
from bireme_operator.plan.recall import taken_back, undrain
from bireme_operator.plan.recovery import charge, wait_of
from bireme_operator.plan.reload import to_reload
from bireme_operator.plan.rest import Rest
from bireme_operator.plan.rollout import deadline, to_roll
from bireme_operator.plan.scale import leave_times, to_add, to_remove
from bireme_operator.plan.spares import become, room_times, with_spares
from bireme_operator.plan.timing import remember_timing
from bireme_operator.status import describe


@dataclass(frozen=True)
class Plan:
    """What to do now, what is to be said, what is to be remembered, and when to look again at the latest.

    ``wake_at`` (Unix seconds) is None when only news can change anything.
    """

    actions: tuple[Action, ...]
    status: Status
    news: tuple[News, ...]
    memory: Memory
    wake_at: float | None


def plan(wish: Desired, observed: Observed, memory: Memory, now: float, rest: Rest | None = None) -> Plan:
    """Plan one pass. ``memory`` is what the previous pass left (kept in status).

    ``rest`` knows what the last pass of the same deployment thought: it saves time and changes nothing.
    """
    rest, before = rest or Rest(), memory.groups
    memory = remember_images(memory, wish, observed)
    wish, name_taken = bound(replace(wish, images=memory.images), memory)
    desired = rest.begin(target(wish, memory, observed.refusal))
    groups = list(_seen(desired, observed, memory, now, rest))
    actions: list[Action] = []
    steps: dict[int, list[Action]] | None = None
    held: set[int] = set()
    if not is_at_rest(wish, memory, observed.refusal):
        groups = _decide(groups, desired, observed, memory, now)
        allotted = allot(groups, desired, observed)
        groups = list(allotted.groups)
        held = {one.index for one in groups if observed.awaits_quota(one.index, begun=bool(one.living))}
        steps = {group.index: list(_steps(group, desired, now, held)) for group in groups if not rest.holds(group)}
        actions = [action for own in steps.values() for action in own]
        actions += [*allotted.lifts, *to_reload(groups, desired)]
        spared = with_spares(actions, groups, desired, observed, memory, now=now)
        actions, memory = list(spared.actions), replace(memory, spares=spared.highest)
    judged = assess(held_back(wish, memory), memory, groups, observed.figures, now)
    after = _remember(remember_rollout(memory, groups, wish, judged, now), groups, actions, now, rest)
    status, conditions = describe(
        wish,
        groups,
        after,
        now,
        refusal=observed.refusal,
        name_taken=name_taken,
        canary=judged,
        conflicts=observed.conflicts,
        rest=rest,
    )
    dues = [*_deadlines(groups, desired, observed, now, rest), *_rollout_deadline(wish, after, now)]
    if steps is not None:
        idle = {index for index, own in steps.items() if not own and after.groups[index] is before.get(index)} - held
        said = [(group, said) for group, said in zip(groups, status.groups, strict=True) if group.index in idle]
        rest.settle(said, observed, lambda group: _own_times(group, desired, now), now)
        rest.forget((steps.keys() - idle) | (before.keys() - after.groups.keys()))
    if target(wish, after, observed.refusal) != desired:
        dues = [now]  # a rollout was given up just now, or its canary has passed
    return Plan(
        tuple(actions),
        status,
        tuple(news(memory, after, actions, {group.index: group.verdict for group in groups})),
        replace(
            after,
            conditions=conditions,
            sources=remember_names(memory.sources, groups),
            images=images_needed(after, wish),
        ),
        min(dues, default=None),
    )


def _seen(desired: Desired, observed: Observed, memory: Memory, now: float, rest: Rest) -> Iterator[Group]:
    """Every group that still exists, with its deaths counted."""
    for index in sorted(memory.groups.keys() | observed.by_group.keys()):
        known = memory.groups.get(index)
        found = rest.find(index, known, observed, now)
        if found is None:
            charged = _charged(known or GroupMemory.new(index, now), desired, observed, now)
            found = None if charged is None else _look(charged, desired, observed, now)
        if found is not None:
            yield found


def _charged(known: GroupMemory, desired: Desired, observed: Observed, now: float) -> GroupMemory | None:
    """Return the memory of a group with its deaths counted, None if it was to go and is gone.

    One that comes back does not wait for pods that outlive their grace: a dead node may keep them for ever.
    """
    pods = observed.by_group.get(known.index, ())
    rolls = known.draining is not None and known.draining.purpose is Purpose.ROLL
    if rolls and all(pod.deleting and now >= over_at(pod) for pod in pods):
        return settled(known.rolled(now), pods, desired)
    if pods or not known.draining:
        return settled(charge(known, pods, as_wanted(desired, known), now), pods, desired)
    return None


def _rollout_deadline(wish: Desired, memory: Memory, now: float) -> Iterator[float]:
    progress = memory.progress
    if progress and not progress.idle and not progress.failed and gave_up(wish, memory) is None:
        yield max(deadline(progress, wish), now)


def _look(memory: GroupMemory, desired: Desired, observed: Observed, now: float) -> Group:
    group = look(memory, as_wanted(desired, memory), observed, now)
    memory = remember_seen(group)
    return group if memory is group.memory else replace(group, memory=memory)


def _decide(groups: Sequence[Group], desired: Desired, observed: Observed, memory: Memory, now: float) -> list[Group]:
    """Make the choices that concern several groups: which are to be, to go, to be rolled."""
    kept = {group.index: group.stages[0].name for group in taken_back(groups, desired, now)}
    groups = [
        _look(replace(group.memory, draining=None, recalled=kept[group.index]), desired, observed, now)
        if group.index in kept
        else group
        for group in groups
    ]
    floor = _floor(memory, groups)
    new = [GroupMemory.new(index, now, floor) for index in to_add(groups, desired, now)]
    new = as_before(new, groups, desired, memory.good)
    groups = [*groups, *(_look(settled(known, (), desired), desired, observed, now) for known in new)]
    leave = Draining(now, Purpose.STOP if desired.stopping else Purpose.SCALE_DOWN)
    drains = dict.fromkeys(to_remove(groups, desired, now), leave)
    rest = [group for group in groups if group.index not in drains]
    drains |= {index: Draining(now, purpose) for index, purpose in to_roll(rest, desired).items()}
    return [
        _look(replace(group.memory, draining=drains[group.index]), desired, observed, now)
        if group.index in drains
        else group
        for group in groups
    ]


def _steps(group: Group, wish: Desired, now: float, held: Collection[int]) -> Iterator[Action]:
    desired = as_wanted(wish, group.memory)
    if group.memory.draining:
        yield from drain(group, desired, now)
    elif group.memory.failure:
        yield from clear(group)
    else:
        yield from undrain(group)
        yield from fence(group)
        repairs = repair(group, desired, now)
        yield from (one for one in repairs if group.index not in held or not isinstance(one, CreatePod))
        if not desired.custom:
            yield from introduce(group)
        yield from become(group, desired)


def _remember(memory: Memory, groups: Sequence[Group], actions: Sequence[Action], now: float, rest: Rest) -> Memory:
    made = made_by_group(actions)
    ended = frozenset(action.name for action in actions if isinstance(action, DeletePod))
    kept = {}
    for group in groups:
        if rest.holds(group):
            kept[group.index] = group.memory
            continue
        own = made.get(group.index, ())
        kept[group.index] = updated(
            remember_timing(group, remember_verdict(group, now), now),
            incarnations={**group.memory.incarnations, **{pod.stage: pod.incarnation for pod in own}},
            # From here on its absence is a death, even if nobody ever sees it.
            counted={**group.memory.counted, **{pod.name: _deaths(pod) for pod in own}},
            leaving=group.memory.leaving | (ended & group.memory.counted.keys()),
            last_death=_lost_nodes(group) or group.memory.last_death,
            asked=group.asked,
        )
    return replace(memory, groups=kept, floor=_floor(memory, groups))


def _deaths(made: CreatePod | AdoptSpare) -> int:
    return made.deaths if isinstance(made, AdoptSpare) else 0


def _lost_nodes(group: Group) -> str:
    return "; ".join(f"stage {pod.stage}: node {pod.node} is lost" for pod in group.stages.values() if pod.node_lost)


def _floor(memory: Memory, groups: Sequence[Group]) -> int:
    """Return the highest incarnation of any group that is gone: its index may be used again, its incarnations not."""
    gone = memory.groups.keys() - {group.index for group in groups}
    ended = [memory.groups[index] for index in gone]
    return max([memory.floor, *(max([group.floor, *group.incarnations.values()]) for group in ended)])


def _deadlines(
    groups: Sequence[Group], desired: Desired, observed: Observed, now: float, rest: Rest
) -> Iterator[float]:
    """The moments at which this look would be judged otherwise although nothing happened."""
    yield from leave_times(groups, now)
    if any(pod.gated for pod in observed.spares):
        yield now + SPARE_RETRY_S
    if observed.spares:
        yield from (due for due in room_times(groups) if due > now)
    for group in groups:
        if group.document is not None:
            yield observed.leaders[group.index].heard_at + SILENT_AFTER_S
        elif group.index in observed.leaders:
            # What the leader said is older than the start of one of its stages; it says it again in an interval.
            yield now + WATCH_INTERVAL_S
        yield from rest.times(group) if rest.holds(group) else _own_times(group, desired, now)


def _own_times(group: Group, desired: Desired, now: float) -> Iterator[float]:
    """Those that do not depend on its leader's word."""
    if group.memory.halfway_since is not None:
        yield max(group.memory.halfway_since + STUCK_S, now)
    if group.gated:
        yield now + RETRY_S
    if group.in_doubt:
        yield now + WATCH_INTERVAL_S
    wait = wait_of(group.memory, desired.recovery, now)
    if wait.until > now and not group.memory.failure:
        yield wait.until
    if group.memory.draining and not group.living and not group.deleting:
        yield now
    elif group.memory.draining:
        yield from (end for end in (*handover_times(group, desired), *map(over_at, group.deleting)) if end > now)
