"""One group as all policies look at it: its memory, its current pods by stage, the word of its leader.

``judge`` is the truth about a group. A leader's document is believed only while its stream is alive and comes from
the current leader pod; a pod that has exited overrules what anybody says.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from bireme.names import GroupState, Reason
from bireme.wire.state import StateDocument
from bireme_operator.plan.desired import Desired
from bireme_operator.plan.memory import GroupMemory, Purpose
from bireme_operator.plan.observed import LeaderView, Observed, Phase, PodView
from bireme_operator.plan.recovery import wait_of

_STATES: Final[Mapping[str, GroupState]] = {state.value: state for state in GroupState}


@dataclass(frozen=True)
class Verdict:
    """What `status.groups` says of a group, and of which epoch."""

    state: GroupState
    reason: str
    message: str = ""
    epoch: int = 0

    @property
    def serving(self) -> bool:
        """Whether the group takes requests."""
        return self.state is GroupState.SERVING


@dataclass(frozen=True)
class Group:
    """``stages`` has the newest living pod of each stage; ``surplus`` are pods that should not be.

    ``document`` is what the leader says, None when it may not be believed.
    """

    memory: GroupMemory
    stages: Mapping[int, PodView]
    surplus: Sequence[PodView]
    deleting: Sequence[PodView]
    document: StateDocument | None
    verdict: Verdict

    @property
    def index(self) -> int:
        """Index of the group inside the deployment."""
        return self.memory.index

    @property
    def living(self) -> list[PodView]:
        """All pods that were not asked to go."""
        return [*self.stages.values(), *self.surplus]

    @property
    def running_requests(self) -> int:
        """Requests in the engine or its queue, as far as known."""
        return self.document.running + self.document.waiting if self.document else 0

    def outdated(self, desired: Desired) -> bool:
        """Whether any pod is of another rendering or checkpoint than wanted."""
        wanted = (desired.revision, desired.model_revision)
        return any((pod.revision, pod.model_revision) != wanted for pod in self.living)


def look(memory: GroupMemory, desired: Desired, observed: Observed, now: float) -> Group:
    """Gather what is known of one group."""
    pods = observed.by_group.get(memory.index, ())
    living = sorted((pod for pod in pods if not pod.deleting), key=lambda pod: pod.incarnation)
    stages = {pod.stage: pod for pod in living if pod.stage < desired.stages}
    surplus = [pod for pod in living if pod not in stages.values()]
    leader = observed.leader(memory.index, stages.get(0))
    if leader is not None and not leader.fresh(now, since=max(pod.started_at for pod in stages.values())):
        leader = replace(leader, connected=False)
    document = leader.document if leader and leader.connected else None
    verdict = judge(memory, stages, leader, desired, now)
    return Group(memory, stages, surplus, [pod for pod in pods if pod.deleting], document, verdict)


def remember_seen(group: Group) -> GroupMemory:
    """Raise the highest incarnation of each stage to what is seen, terminating pods included."""
    highest = dict(group.memory.incarnations)
    for pod in [*group.living, *group.deleting]:
        highest[pod.stage] = max(highest.get(pod.stage, 0), pod.incarnation)
    return replace(group.memory, incarnations=highest)


def remember_verdict(group: Group, now: float) -> GroupMemory:
    """Note since when the group is in its state, and how long it took to serve."""
    known, verdict = group.memory, group.verdict
    if verdict.state is known.state:
        return replace(known, epoch=max(known.epoch, verdict.epoch)) if verdict.serving else known
    known = replace(known, state=verdict.state, since=now)
    if verdict.serving:
        total = known.total_s if known.down_since is None else now - known.down_since
        return replace(known, epoch=verdict.epoch, down_since=None, total_s=total)
    return replace(known, down_since=now if known.down_since is None else known.down_since)


def judge(
    memory: GroupMemory, stages: Mapping[int, PodView], leader: LeaderView | None, desired: Desired, now: float
) -> Verdict:
    """Say in which state a group is, and why."""
    if memory.draining:
        return _draining(memory, leader)
    if memory.failure:
        return Verdict(GroupState.FAILED, memory.failure.reason, memory.failure.message)
    return _incomplete(memory, stages, desired, now) or _as_the_leader_says(memory, stages, leader)


def _draining(memory: GroupMemory, leader: LeaderView | None) -> Verdict:
    assert memory.draining is not None
    reason = Reason.SHUTTING_DOWN if memory.draining.purpose is Purpose.STOP else Reason.DRAIN_REQUESTED
    if leader is None or not leader.connected:
        return Verdict(GroupState.DRAINING, reason, "stages are being stopped")
    open_requests = leader.document.running + leader.document.waiting
    return Verdict(GroupState.DRAINING, reason, f"{open_requests} requests still run", leader.document.epoch)


def _incomplete(memory: GroupMemory, stages: Mapping[int, PodView], desired: Desired, now: float) -> Verdict | None:
    down = [stage for stage in range(desired.stages) if stage not in stages or stages[stage].phase is not Phase.RUNNING]
    if not down:
        return None
    listed = ", ".join(map(str, down))
    wait = wait_of(memory, desired.recovery, now)
    if wait.until > now or any(pod.phase is Phase.BACKING_OFF for pod in stages.values()):
        message = f"stage {listed} waits after {max(wait.deaths, 1)} ends in a row; the last: {memory.last_death}"
        return Verdict(GroupState.BACKING_OFF, Reason.CRASH_LOOP, message)
    if not memory.served:
        return Verdict(GroupState.STARTING, Reason.PULLING, f"stage {listed} is being started")
    reason = Reason.LEADER_LOST if 0 in down else Reason.STAGE_LOST
    return Verdict(GroupState.RECOVERING, reason, f"stage {listed} is being started again; {memory.last_death}")


def _as_the_leader_says(memory: GroupMemory, stages: Mapping[int, PodView], leader: LeaderView | None) -> Verdict:
    without = GroupState.RECOVERING if memory.served else GroupState.STARTING
    if leader is not None and leader.connected:
        document = leader.document
        state = _STATES.get(document.state, without)
        return Verdict(state, document.reason or Reason.NONE, document.message, document.epoch)
    newest = max(stages.values(), key=lambda pod: pod.started_at)
    if leader is not None and leader.heard_at >= newest.started_at:
        message = f"the leader at {stages[0].address} has fallen silent or closed its /watch"
        return Verdict(without, Reason.WORKER_UNREACHABLE, message)
    if memory.served:
        reason = Reason.STAGE_LOST if newest.stage else Reason.LEADER_LOST
        return Verdict(GroupState.RECOVERING, reason, f"stage {newest.stage} starts again; {memory.last_death}")
    return Verdict(GroupState.STARTING, Reason.PULLING, "the stages' processes are starting")
