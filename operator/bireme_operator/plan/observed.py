"""What a backend sees: its pods, and the last word of every leader."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Final

from bireme.wire.state import StateDocument
from bireme_operator.plan.places import Needs, NodeView

WATCH_INTERVAL_S: Final = 1.0
SILENT_AFTER_S: Final = 3 * WATCH_INTERVAL_S
"""A `/watch` that says nothing for three intervals is unknown (design, section 6.2)."""


class Phase(Enum):
    """Where a pod is in its life. The backend restarts what ended unless the exit was final.

    A pod is PENDING until its process has run for the first time: it waits for a place, for an image, for a volume.
    """

    PENDING = "Pending"
    RUNNING = "Running"
    BACKING_OFF = "BackingOff"
    EXITED = "Exited"


@dataclass(frozen=True)
class PodView:
    """One stage pod. ``restarts`` counts starts in place after the first; ``exit_code`` is that of the last end.

    ``told_leader`` is the incarnation of the leader that this start of the pod last heard of. ``started_at`` is the
    start of the running process in Unix seconds, by the clock of who looks. A ``deleting`` pod is on its way out and
    stands for nothing. ``node`` is where it runs; ``unplaced`` says that no node takes it (``message`` has why),
    ``node_lost`` that its node is dead by the word of two witnesses, ``node_leaving`` that it is to be emptied. A
    ``gated`` pod is not let to the scheduler yet; ``aim`` is the host name of the node that it was let go for.
    ``ready`` is the word of its readiness probe, which counts for engines that are not ours.
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
    node: str = ""
    unplaced: bool = False
    node_lost: bool = False
    node_leaving: bool = False
    gated: bool = False
    aim: str = ""
    ready: bool = False

    @property
    def deaths(self) -> int:
        """How often the pod's process has ended so far."""
        return self.restarts + (self.phase in {Phase.BACKING_OFF, Phase.EXITED})


@dataclass(frozen=True)
class LeaderView:
    """What the leader pod ``pod`` said last on its `/watch`, at ``heard_at`` (Unix seconds).

    ``connected`` is False from the moment the stream breaks: a broken stream is news, not silence.
    """

    pod: str
    document: StateDocument
    heard_at: float
    connected: bool = True

    def fresh(self, now: float, since: float) -> bool:
        """Whether the document may be believed; what is older than ``since``, the last start of any stage, may not."""
        return self.connected and self.heard_at >= since and now - self.heard_at < SILENT_AFTER_S


@dataclass(frozen=True)
class Observed:
    """One consistent look. ``leaders`` by group index; a leader that never spoke is absent.

    ``refusal`` has the backend's words when it can't make pods as they are wanted now, ``without_quota`` what it said
    when there was no room for a whole group, by group index. ``nodes`` are all nodes with what is free on them and
    ``needs`` what a stage asks of one; they are read only when a pod waits at its gate, None where they can't be.
    """

    pods: tuple[PodView, ...] = ()
    leaders: Mapping[int, LeaderView] = field(default_factory=dict)
    refusal: str = ""
    without_quota: Mapping[int, str] = field(default_factory=dict)
    nodes: tuple[NodeView, ...] | None = None
    needs: Needs = field(default_factory=Needs)

    @cached_property
    def by_group(self) -> Mapping[int, tuple[PodView, ...]]:
        """The pods of each group that has any."""
        groups: dict[int, list[PodView]] = {}
        for pod in self.pods:
            groups.setdefault(pod.group, []).append(pod)
        return {index: tuple(pods) for index, pods in groups.items()}

    def leader(self, group: int, pod: PodView | None) -> LeaderView | None:
        """Return the word of this very pod, never that of its predecessor."""
        view = self.leaders.get(group)
        return view if view is not None and pod is not None and view.pod == pod.name else None
