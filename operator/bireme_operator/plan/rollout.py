"""Which groups get the new rendering now, within `maxSurge`, `maxUnavailable` and `partition`.

Unready groups go first and all at once: replacing them costs no capacity, and a bad first rollout must not block its
own fix. One that is only not heard is not unready, least of all when none is heard: the fault is ours then. A ready
group goes only while enough others serve, so a bad revision stops by itself. Groups that were made beside the wanted
ones take the place of the last outdated ones, which then leave for good instead of coming back.
"""

from collections.abc import Sequence
from dataclasses import replace

from bireme_operator.plan.desired import Desired
from bireme_operator.plan.group import Group
from bireme_operator.plan.memory import Progress, Purpose


def is_leaving(group: Group) -> bool:
    """Whether the group is on its way out for good (a rollout brings it back under its index)."""
    return group.memory.draining is not None and group.memory.draining.purpose is not Purpose.ROLL


def outdated(groups: Sequence[Group], desired: Desired) -> list[Group]:
    """Return the groups that are still to be made anew, unready ones first, those that stay by `partition` left out.

    One that is to leave its node does not stay: its successor does, in its place.
    """
    found = [group for group in groups if group.memory.draining is None and group.outdated(desired)]
    if desired.rollout.partition:
        found = [group for group in found if not group.moving]
    ranked = sorted(found, key=lambda group: (group.verdict.serving, group.running_requests, group.index))
    return ranked[: max(len(ranked) - desired.rollout.partition, 0)]


def surge(groups: Sequence[Group], desired: Desired) -> int:
    """Return how many groups there may be above `spec.replicas` now: as many as still serve what is outdated.

    A canary that has no room among them, because all others stay, is one of these.
    """
    rollout = desired.rollout
    beside = rollout.trial - (desired.replicas - rollout.partition) if rollout.trial else 0
    return min(rollout.surge, max(beside, sum(group.verdict.serving for group in outdated(groups, desired))))


def to_roll(groups: Sequence[Group], desired: Desired) -> dict[int, Purpose]:
    """Return the outdated groups to drain in this pass, and whether they come back."""
    staying = [group for group in groups if not is_leaving(group)]
    serving = sum(group.verdict.serving for group in staying)
    spare = max(len(staying) - desired.replicas, 0)
    left = outdated(staying, desired)
    chosen: dict[int, Purpose] = {}
    for group in left:
        if _perhaps_serving(group, staying):
            if not group.verdict.serving or serving - 1 < desired.replicas - desired.rollout.unavailable:
                continue
            serving -= 1
        for_good = len(left) - len(chosen) <= spare and group.verdict.serving
        spare -= for_good
        chosen[group.index] = Purpose.SCALE_DOWN if for_good else Purpose.ROLL
    return chosen


def _perhaps_serving(group: Group, groups: Sequence[Group]) -> bool:
    if group.unheard_s is None:
        return group.verdict.serving
    return group.in_doubt or not any(other.document for other in groups)


def track(known: Progress | None, groups: Sequence[Group], desired: Desired, now: float) -> Progress:
    """Note whether the groups have come nearer to what is wanted since the last look, and whether it is given up."""
    staying = [group for group in groups if not is_leaving(group)]
    updated = sum(group.verdict.serving and group.current(desired) for group in staying)
    aim = desired.rollout.trial or max(desired.replicas - desired.rollout.partition, 0)
    idle = desired.paused or desired.stopping or updated >= aim or not staying
    if known is not None and known.resume != desired.resume:
        known = None if known.failed else replace(known, resume=desired.resume)
    if known is None or known.key != desired.rendering.key:
        return Progress(desired.rendering.key, now, updated, idle, resume=desired.resume)
    if idle:
        return replace(known, updated=updated, idle=True, failed="" if updated >= aim else known.failed)
    if known.idle or updated > known.updated:
        return replace(known, since=now, updated=updated, idle=False)
    return replace(known, failed=known.failed or _failed(known, staying, desired, now))


def deadline(progress: Progress, desired: Desired) -> float:
    """Return when the rollout is given up unless it comes nearer before."""
    return progress.since + desired.rollout.deadline_s


def _failed(known: Progress, groups: Sequence[Group], desired: Desired, now: float) -> str:
    broken = [group for group in groups if group.memory.failure and group.current(desired)]
    if broken:
        failure = broken[0].memory.failure
        assert failure is not None
        return f"group {broken[0].index} of the new revision has failed: {failure.reason}: {failure.message}"
    if now < deadline(known, desired):
        return ""
    waiting = next((group for group in groups if not group.verdict.serving), None)
    why = "" if waiting is None else f"; group {waiting.index}: {waiting.verdict.reason} {waiting.verdict.message}"
    return f"{known.updated} groups serve it, and no more since {desired.rollout.deadline_s:g} s{why}"
