"""One group as all policies look at it: its memory, its current pods by stage, the word of its leader.

``judge`` is the truth about a group. A leader's document is believed only while its stream is alive and comes from
the current leader pod; a pod that has exited overrules what anybody says.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from bireme.names import GroupState, Reason
from bireme.wire.state import StateDocument
from bireme_operator.plan.desired import Desired
from bireme_operator.plan.memory import Failure, GroupMemory, Purpose, generation_key, updated
from bireme_operator.plan.observed import LeaderView, Observed, Phase, PodView, as_it_is, is_preemption
from bireme_operator.plan.providers import Gang
from bireme_operator.plan.recovery import making_of, the_last, wait_of

RELOAD_FAILED: Final = "Failed"
RELOAD_PHASES: Final[Mapping[str, Reason]] = {
    "Staging": Reason.STAGING,
    "Prepared": Reason.PREPARED,
    "Committing": Reason.COMMITTING,
}
"""`ReloadState.phase` while a reload is under way."""
DOUBTED_S: Final = 30.0
"""A group that served and whose stages all run is in doubt, not unready, while its leader is not heard for so long."""
_STATES: Final[Mapping[str, GroupState]] = {state.value: state for state in GroupState}


@dataclass(frozen=True)
class Verdict:
    """What `status.groups` says of a group, and of which epoch."""

    state: GroupState
    reason: str
    message: str = ""
    epoch: int = 0

    @cached_property
    def serving(self) -> bool:
        """Whether the group takes requests."""
        return self.state in {GroupState.SERVING, GroupState.RELOADING}


@dataclass(frozen=True)
class Group:
    """``stages`` has the newest living pod of each stage; ``surplus`` are pods that should not be.

    ``document`` is what the leader says, None when it may not be believed; ``heard_at`` is when it said anything last,
    0 for never. ``size`` is how many stages the group is to have. ``unheard_s`` is for how long nobody has heard the
    leader of a group that served and whose stages all run: it may well serve. None for all other groups. ``stranger``
    is why its leader can't be understood, if it speaks another version.
    """

    memory: GroupMemory
    stages: Mapping[int, PodView]
    surplus: Sequence[PodView]
    deleting: Sequence[PodView]
    document: StateDocument | None
    verdict: Verdict
    size: int
    unheard_s: float | None = None
    heard_at: float = 0.0
    stranger: str = ""

    @property
    def index(self) -> int:
        """Index of the group inside the deployment."""
        return self.memory.index

    @cached_property
    def moving(self) -> bool:
        """Whether the group is to be had elsewhere, because one of its nodes is to be emptied."""
        return any(pod.node_leaving for pod in self.stages.values())

    @cached_property
    def leave_by(self) -> float:
        """When the first of its nodes goes (Unix seconds), 0 where nobody has said so."""
        return min((pod.leave.by for pod in self.stages.values() if pod.node_leaving and pod.leave.by), default=0.0)

    @property
    def asked(self) -> str:
        """Which nodes it is to leave, and why; empty where it may stay."""
        leaving = [pod for pod in self.stages.values() if pod.node_leaving]
        why = "; ".join(sorted({pod.leave.why for pod in leaving} - {""}))
        nodes = ", ".join(sorted({pod.node for pod in leaving}))
        return f"is to leave {nodes}" + (f" ({why})" if why else "") if leaving else ""

    @property
    def may_stay(self) -> bool:
        """Whether all that asks the group to leave can wait until a successor serves."""
        return all(pod.leave.patient for pod in self.stages.values() if pod.node_leaving)

    @property
    def in_doubt(self) -> bool:
        """Whether the group may serve although nobody hears it: an operator that has just begun hears none."""
        return self.unheard_s is not None and self.unheard_s < DOUBTED_S

    @cached_property
    def living(self) -> list[PodView]:
        """All pods that were not asked to go."""
        return [*self.stages.values(), *self.surplus]

    @cached_property
    def gated(self) -> bool:
        """Whether a stage waits at its gate."""
        return any(pod.gated for pod in self.stages.values())

    @cached_property
    def placed(self) -> bool:
        """Whether every stage is there and waits for no place."""
        return len(self.stages) == self.size and not any(pod.unplaced or pod.gated for pod in self.stages.values())

    @property
    def running_requests(self) -> int:
        """Requests in the engine or its queue, as far as known."""
        return self.document.running + self.document.waiting if self.document else 0

    @cached_property
    def model_revision(self) -> str:
        """The checkpoint that the group serves, as far as known; that of its pods before it ever served."""
        if self.document is not None:
            return self.document.model_revision
        return self.memory.model_revision or next((pod.model_revision for pod in self.living), "")

    def outdated(self, desired: Desired) -> bool:
        """Whether the pods must be made anew: other rendering, restart, or a checkpoint that never came to serve."""
        return self._compared(desired)[0]

    def _compared(self, desired: Desired) -> tuple[bool, bool]:
        """Whether it is outdated, and whether it is current. All policies ask, so the last answer is kept."""
        known: tuple[object, tuple[bool, bool]] | None = self.__dict__.get("_answer")
        if known is None or known[0] != desired.made_of:
            outdated = self._is_outdated(desired)
            answer = outdated, not outdated and self.model_revision == desired.model_revision
            known = self.__dict__["_answer"] = (desired.made_of, answer)
        return known[1]

    def _is_outdated(self, desired: Desired) -> bool:
        if self.memory.revision != desired.revision or self.memory.restart != desired.restart:
            return True
        if any(pod.revision != desired.revision for pod in self.living):
            return True
        if self.memory.served:
            return False
        return not all(pod.has(desired.model_revision, desired.source) for pod in self.living)

    def stale(self, desired: Desired) -> bool:
        """Whether the group serves another checkpoint than wanted, by its own fresh word."""
        return self.document is not None and self.document.model_revision != desired.model_revision

    def current(self, desired: Desired) -> bool:
        """Whether rendering and checkpoint are those that are wanted."""
        return self._compared(desired)[1]


def look(memory: GroupMemory, desired: Desired, observed: Observed, now: float) -> Group:
    """Gather what is known of one group; ``desired`` is what is wanted of this very group."""
    pods = observed.by_group.get(memory.index, ())
    living = sorted((pod for pod in pods if not pod.deleting), key=lambda pod: pod.incarnation)
    memory = updated(memory, making=making_of(memory, living, desired))
    stages = {pod.stage: pod for pod in living if pod.stage < desired.stages and pod.incarnation >= memory.making}
    surplus = [pod for pod in living if pod not in stages.values()]
    leader = observed.leader(memory.index, stages.get(0))
    if leader is not None and not leader.fresh(now, since=max(pod.started_at for pod in stages.values())):
        leader = replace(leader, connected=False)
    document = leader.document if leader and leader.connected else None
    stranger = observed.strangers.get(stages[0].name, "") if 0 in stages else ""
    if not stranger:  # it speaks, so what was a spare was told; whom it has heard of nobody understands
        stages = {stage: as_it_is(pod, leader) for stage, pod in stages.items()}
    memory = updated(memory, halfway_since=_halfway(memory, stages, desired, now))
    verdict = judge(memory, stages, leader, desired, now, stranger=stranger)
    verdict = _if_preempted(verdict, [pod for pod in pods if pod.deleting])
    unheard_s = None if document or stranger else _unheard_s(memory, stages, leader, desired, now)
    runs = len(stages) == desired.stages and all(pod.phase is Phase.RUNNING for pod in stages.values())
    if memory.index in observed.without_quota and not (runs or memory.draining or memory.failure):
        verdict = Verdict(GroupState.PENDING, Reason.QUOTA, observed.without_quota[memory.index])
    deleting = [pod for pod in pods if pod.deleting]
    heard_at = leader.heard_at if leader else 0.0
    return Group(memory, stages, surplus, deleting, document, verdict, desired.stages, unheard_s, heard_at, stranger)


def _unheard_s(
    memory: GroupMemory, stages: Mapping[int, PodView], leader: LeaderView | None, desired: Desired, now: float
) -> float | None:
    running = [pod for pod in stages.values() if pod.phase is Phase.RUNNING and not pod.node_lost]
    if desired.custom or not memory.served or memory.draining or memory.failure or len(running) < desired.stages:
        return None
    return now - max([*(pod.started_at for pod in running), leader.heard_at if leader else 0.0])


def _halfway(memory: GroupMemory, stages: Mapping[int, PodView], desired: Desired, now: float) -> float | None:
    """Since when the scheduler refuses a stage that was let to it. One it has not come to yet is only slow.

    So is one that it has promised a node, though it was refused before: the scheduler leaves those words standing.
    Or since when a group that never served holds devices while one of its stages waits for a place. A native gang is
    refused as a whole, and waits so; it is halfway only while another stage of it has a node.
    """
    refused = any(pod.unplaced and not (pod.node or pod.promised or pod.gated) for pod in stages.values())
    split = not memory.served and len({pod.gated for pod in stages.values() if pod.gated or pod.node}) > 1
    held = any(pod.node for pod in stages.values())
    halfway = {Gang.GATES: refused or split, Gang.NATIVE: refused and held and not desired.no_gangs}
    if not halfway.get(desired.gang):
        return None
    return now if memory.halfway_since is None else memory.halfway_since


def remember_seen(group: Group) -> GroupMemory:
    """Raise the highest incarnation of each stage to what is seen, terminating pods included."""
    highest = dict(group.memory.incarnations)
    for pod in [*group.living, *group.deleting]:
        highest[pod.stage] = max(highest.get(pod.stage, 0), pod.incarnation)
    if group.document is None:
        return updated(group.memory, incarnations=highest)
    served = group.document
    # Said by the leader before it was ever judged so: a group that serves has requests to finish.
    epoch = max(group.memory.epoch, served.epoch if served.state == GroupState.SERVING else 0)
    return updated(
        group.memory,
        incarnations=highest,
        source=served.source,
        model_revision=served.model_revision,
        epoch=epoch,
        refused=_refusal(served) or group.memory.refused,
    )


def _refusal(said: StateDocument) -> Failure | None:
    """Why the leader could not have the checkpoint of a wish, for as long as that is wanted."""
    reload = said.reload
    final = reload.phase == RELOAD_FAILED and reload.final
    return Failure(Reason.RELOAD_FAILED, _why_not(said), generation_key(reload.wish)) if final else None


def remember_verdict(group: Group, now: float) -> GroupMemory:
    """Note since when the group is in its state, and how long it took to serve."""
    known, verdict = group.memory, group.verdict
    if verdict.state is GroupState.SERVING:
        known = updated(known, announced=known.model_revision)
    if verdict.state is known.state:
        return updated(known, epoch=max(known.epoch, verdict.epoch)) if verdict.serving else known
    known = replace(known, state=verdict.state, since=now)
    if verdict.serving:
        total = known.total_s if known.down_since is None else now - known.down_since
        return replace(known, epoch=verdict.epoch, down_since=None, total_s=total)
    return replace(known, down_since=now if known.down_since is None else known.down_since)


def judge(
    memory: GroupMemory,
    stages: Mapping[int, PodView],
    leader: LeaderView | None,
    desired: Desired,
    now: float,
    *,
    stranger: str,
) -> Verdict:
    """Say in which state a group is, and why. ``stranger`` is why its leader can't be understood."""
    if memory.draining:
        return _draining(memory, leader)
    if memory.failure:
        return Verdict(GroupState.FAILED, memory.failure.reason, memory.failure.message)
    incomplete = _incomplete(memory, stages, desired, now)
    if stranger and not incomplete:
        without = GroupState.RECOVERING if memory.served else GroupState.STARTING
        return Verdict(without, Reason.WRONG_VERSION, stranger)
    if incomplete or not desired.custom:
        return incomplete or _as_the_leader_says(memory, stages, leader, desired)
    return _as_the_pods_say(memory, stages)


def _draining(memory: GroupMemory, leader: LeaderView | None) -> Verdict:
    assert memory.draining is not None
    reason = Reason.SHUTTING_DOWN if memory.draining.purpose is Purpose.STOP else Reason.DRAIN_REQUESTED
    if leader is None or not leader.connected:
        return Verdict(GroupState.DRAINING, reason, "stages are being stopped")
    open_requests = leader.document.running + leader.document.waiting
    return Verdict(GroupState.DRAINING, reason, f"{open_requests} requests still run", leader.document.epoch)


def _incomplete(memory: GroupMemory, stages: Mapping[int, PodView], desired: Desired, now: float) -> Verdict | None:
    if lost := [pod for pod in stages.values() if pod.node_lost]:
        message = f"stage {lost[0].stage} is made anew: node {lost[0].node} is lost"
        return Verdict(GroupState.RECOVERING, Reason.NODE_LOST, message)
    down = [stage for stage in range(desired.stages) if stage not in stages or stages[stage].phase is not Phase.RUNNING]
    if not down:
        return None
    listed = ", ".join(map(str, down))
    wait = wait_of(memory, desired.recovery, now)
    if wait.until > now or any(pod.phase is Phase.BACKING_OFF for pod in stages.values()):
        message = f"stage {listed} waits after {max(wait.deaths, 1)} ends in a row{the_last(memory)}"
        return Verdict(GroupState.BACKING_OFF, Reason.CRASH_LOOP, message)
    if any(pod.gated for pod in stages.values()):
        state = GroupState.RECOVERING if memory.served else GroupState.PENDING
        return Verdict(state, Reason.GATED, f"stage {listed} waits for a place for the whole group")
    unplaced = [pod for pod in stages.values() if pod.unplaced]
    if unplaced:
        message = f"stage {unplaced[0].stage} has no node: {unplaced[0].message}"
        state = GroupState.RECOVERING if memory.served else GroupState.PENDING
        if desired.no_gangs and desired.gang is Gang.NATIVE:
            return Verdict(state, Reason.NATIVE_GANG_IGNORED, f"{message}; {desired.no_gangs}")
        return Verdict(state, Reason.UNSCHEDULABLE, message)
    if not memory.served:
        return Verdict(GroupState.STARTING, Reason.PULLING, f"stage {listed} is being started")
    reason = Reason.LEADER_LOST if 0 in down else Reason.STAGE_LOST
    return Verdict(GroupState.RECOVERING, reason, _because(f"stage {listed} is being started again", memory))


def _because(message: str, memory: GroupMemory) -> str:
    """Add what ended last, if anything is known of it: of a pod that somebody deleted nothing is."""
    return "; ".join(filter(None, (message, memory.last_death)))


def _if_preempted(verdict: Verdict, deleting: Sequence[PodView]) -> Verdict:
    """Say so when a stage is lost because the scheduler gave its place to a pod of higher priority."""
    taken = next((pod for pod in deleting if is_preemption(pod.disrupted)), None)
    if taken is None or verdict.state is not GroupState.RECOVERING:
        return verdict
    message = f"stage {taken.stage} had to give way on node {taken.node}: {taken.disrupted}; {verdict.message}"
    return replace(verdict, reason=Reason.PREEMPTED, message=message)


def _as_the_pods_say(memory: GroupMemory, stages: Mapping[int, PodView]) -> Verdict:
    """Of an engine that is not ours nothing is known but the readiness of its pods."""
    unready = [str(stage) for stage, pod in sorted(stages.items()) if not pod.ready]
    if not unready:
        return Verdict(GroupState.SERVING, Reason.NONE, "", max(memory.making, 1))
    state = GroupState.RECOVERING if memory.served else GroupState.STARTING
    return Verdict(state, Reason.LOADING, f"stage {', '.join(unready)} is not ready by its own probe")


def _as_it_serves(memory: GroupMemory, document: StateDocument, desired: Desired) -> Verdict:
    """Name why a reload has failed if that is final for what is wanted now; otherwise it is tried again."""
    reload, epoch = document.reload, document.epoch
    if reload.phase in RELOAD_PHASES:
        message = f"from model revision {document.model_revision} to {reload.model_revision}"
        return Verdict(GroupState.RELOADING, RELOAD_PHASES[reload.phase], message, epoch)
    failed = reload.phase == RELOAD_FAILED
    if failed and reload.final and reload.wish == desired.generation:
        return Verdict(GroupState.SERVING, Reason.RELOAD_FAILED, _why_not(document), epoch)
    if memory.refused and memory.refuses(desired.generation):  # in the words of a leader that is no more
        return Verdict(GroupState.SERVING, Reason.RELOAD_FAILED, memory.refused.message, epoch)
    tried_again = failed and not reload.final and document.model_revision != desired.model_revision
    return Verdict(GroupState.SERVING, Reason.NONE, _why_not(document) if tried_again else "", epoch)


def _why_not(document: StateDocument) -> str:
    return f"model revision {document.reload.model_revision}: {document.reload.message}"


def _as_the_leader_says(
    memory: GroupMemory, stages: Mapping[int, PodView], leader: LeaderView | None, desired: Desired
) -> Verdict:
    without = GroupState.RECOVERING if memory.served else GroupState.STARTING
    if leader is not None and leader.connected:
        document = leader.document
        state = _STATES.get(document.state, without)
        if state is GroupState.SERVING:
            return _as_it_serves(memory, document, desired)
        return Verdict(state, document.reason or Reason.NONE, document.message, document.epoch)
    newest = max(stages.values(), key=lambda pod: pod.started_at)
    if leader is not None and leader.heard_at >= newest.started_at:
        message = f"the leader at {stages[0].address} has fallen silent or closed its /watch"
        return Verdict(without, Reason.WORKER_UNREACHABLE, message)
    if memory.served:
        reason = Reason.STAGE_LOST if newest.stage else Reason.LEADER_LOST
        return Verdict(GroupState.RECOVERING, reason, _because(f"stage {newest.stage} starts again", memory))
    return Verdict(GroupState.STARTING, Reason.PULLING, "the stages' processes are starting")
