"""What a backend sees: its pods, and the last word of every leader."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from typing import Final, Self

from bireme.wire.state import StateDocument
from bireme_operator.plan.figures import Figures
from bireme_operator.plan.places import Needs, NodeView

WATCH_INTERVAL_S: Final = 1.0
SILENT_AFTER_S: Final = 3 * WATCH_INTERVAL_S
"""A `/watch` that says nothing for three intervals is unknown (design, section 6.2)."""


SPARE: Final = -1
"""Group and stage of a pod that is no stage yet."""


class Phase(Enum):
    """Where a pod is in its life. The backend restarts what ended unless the exit was final.

    A pod is PENDING until its process has run for the first time: it waits for a place, for an image, for a volume.
    """

    PENDING = "Pending"
    RUNNING = "Running"
    BACKING_OFF = "BackingOff"
    EXITED = "Exited"


_PREEMPTED: Final = "PreemptionByScheduler"


def is_preemption(disrupted: str) -> bool:
    """Whether the scheduler took a pod's place for one of higher priority."""
    return disrupted.startswith(_PREEMPTED)


@dataclass(frozen=True)
class Leave:
    """Why a pod is asked to leave, and by when (Unix seconds; 0: when it can).

    A ``patient`` wish is for the group's own good: it is never stopped for it before a successor serves.
    """

    why: str = ""
    by: float = 0.0
    patient: bool = False

    @classmethod
    def of(cls, why: str, since: float, notice_s: float) -> Self:
        """Return what follows from a notice of so many seconds, 0 for none."""
        return cls(why, since + notice_s if notice_s else 0.0)


@dataclass(frozen=True)
class PodView:
    """One stage pod. ``restarts`` counts starts in place after the first; ``exit_code`` is that of the last end.

    ``told_leader`` is the incarnation of the leader that this start of the pod last heard of. ``started_at`` is the
    start of the running process in Unix seconds, by the clock of who looks. A ``deleting`` pod is on its way out and
    stands for nothing; its grace is over at ``end_by`` (Unix seconds). ``node`` is where it runs; ``unplaced`` says
    that no node takes it (``message`` has why), ``promised`` the node that the scheduler has in mind: room is being
    made there, or volumes are being bound.
    ``node_lost`` says that its node is dead by the word of two witnesses, ``node_leaving`` that it is to be emptied. A
    ``gated`` pod is not let to the scheduler yet; ``aim`` is the host name of the node that it was let go for.
    ``ready`` is the word of its readiness probe, which counts for engines that are not ours. ``spare`` is the number of
    a pod that stands by or did so before it became a stage; ``stands_by``: it was not told yet that it is one.
    ``source`` is where its checkpoint lies, with which ``model_revision`` it was made. ``leave`` says why a pod is
    ``node_leaving`` and by when; ``disrupted`` why somebody ends it; a ``stranded`` pod waits for a node and was kept
    off one that is open again. ``image`` is that of its worker.
    """

    name: str
    group: int
    stage: int
    incarnation: int
    revision: str
    model_revision: str
    phase: Phase
    address: str
    restarts: int = 0
    exit_code: int | None = None
    message: str = ""
    started_at: float = 0.0
    told_leader: int = 0
    deleting: bool = False
    end_by: float = 0.0
    node: str = ""
    unplaced: bool = False
    promised: str = ""
    node_lost: bool = False
    node_leaving: bool = False
    gated: bool = False
    aim: str = ""
    ready: bool = False
    source: str = ""
    spare: int = 0
    stands_by: bool = False
    leave: Leave = field(default_factory=Leave)
    disrupted: str = ""
    stranded: bool = False
    image: str = ""

    def has(self, model_revision: str, source: str) -> bool:
        """Whether it was made with this checkpoint; where nobody knows the source, the name tells."""
        same = not self.source or not source or self.source == source
        return same and self.model_revision == model_revision

    @property
    def deaths(self) -> int:
        """How often the pod's process has ended so far."""
        return self.restarts + (self.phase in {Phase.BACKING_OFF, Phase.EXITED})


@dataclass(frozen=True)
class LeaderView:
    """What the leader pod ``pod`` said last on its `/watch`, at ``heard_at`` (Unix seconds).

    ``connected`` is False from the moment the stream breaks: a broken stream is news, not silence. ``word`` is the same
    object as before for as long as the leader says nothing that a plan depends on; None if nobody compares.
    """

    pod: str
    document: StateDocument
    heard_at: float
    connected: bool = True
    word: object = None

    def fresh(self, now: float, since: float) -> bool:
        """Whether the document may be believed; what is older than ``since``, the last start of any stage, may not."""
        return self.connected and self.heard_at >= since and now - self.heard_at < SILENT_AFTER_S


@dataclass(frozen=True)
class Observed:
    """One consistent look. ``leaders`` by group index; a leader that never spoke is absent.

    ``refusal`` has the backend's words when it can't make pods as they are wanted now, ``without_quota`` what it said
    when there was no room for a whole group, by group index. ``nodes`` are all nodes with what is free on them and
    ``needs`` what a stage asks of one; they are read only when a pod waits at its gate, None where they can't be.
    ``figures`` is what the routers count, None while nobody judges by it. ``spares`` are the pods that stand by;
    ``no_more_spares`` says that the backend has no room for another one now. ``conflicts`` names a disruption budget
    of somebody else that chooses a group's pods too, by group index. ``labels`` are those of the nodes, by name, as far
    as they are known. ``quota_is_short`` says that a quota has refused pods a moment ago. ``strangers`` are the leaders
    that speak a version which is not understood, by pod, and in which words that was said.
    """

    pods: tuple[PodView, ...] = ()
    leaders: Mapping[int, LeaderView] = field(default_factory=dict)
    refusal: str = ""
    without_quota: Mapping[int, str] = field(default_factory=dict)
    nodes: tuple[NodeView, ...] | None = None
    needs: Needs = field(default_factory=Needs)
    figures: Figures | None = None
    spares: tuple[PodView, ...] = ()
    no_more_spares: bool = False
    conflicts: Mapping[int, str] = field(default_factory=dict)
    labels: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    quota_is_short: bool = False
    strangers: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def by_group(self) -> Mapping[int, tuple[PodView, ...]]:
        """The pods of each group that has any."""
        groups: dict[int, list[PodView]] = {}
        for pod in self.pods:
            groups.setdefault(pod.group, []).append(pod)
        return {index: tuple(pods) for index, pods in groups.items()}

    def marked(
        self, lost: Collection[str], leaving: Mapping[str, Leave], stranded: Collection[str] = frozenset()
    ) -> "Observed":
        """Return the same with the pods on lost nodes marked, and those whose names are among the others."""
        if not (lost or leaving or stranded):
            return self

        def mark(pod: PodView) -> PodView:
            if not (pod.node in lost or pod.name in leaving or pod.name in stranded):
                return pod
            return replace(
                pod,
                node_lost=pod.node in lost,
                node_leaving=pod.name in leaving,
                leave=leaving.get(pod.name, pod.leave),
                stranded=pod.name in stranded,
            )

        return replace(self, pods=tuple(map(mark, self.pods)), spares=tuple(map(mark, self.spares)))

    def awaits_quota(self, group: int, *, begun: bool) -> bool:
        """Whether pods of a group are not to be asked for now. What completes one that has ``begun`` is tried once."""
        return self.quota_is_short and (group in self.without_quota or not begun)

    def leader(self, group: int, pod: PodView | None) -> LeaderView | None:
        """Return the word of this very pod, never that of its predecessor."""
        view = self.leaders.get(group)
        return view if view is not None and pod is not None and view.pod == pod.name else None


def as_it_is(pod: PodView, leader: LeaderView | None) -> PodView:
    """Return a stage that was a spare as one that still waits, unless it was told or its leader has heard of it."""
    if not pod.spare or pod.told_leader or pod.phase is not Phase.RUNNING:
        return pod
    heard = {(said.stage, said.incarnation) for said in leader.document.stages} if leader else set()
    if leader and (pod.stage == 0 or (pod.stage, pod.incarnation) in heard):
        return pod
    return replace(pod, phase=Phase.PENDING, stands_by=True)
