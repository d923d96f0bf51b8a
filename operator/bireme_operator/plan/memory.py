"""What must be remembered between two looks, because no look shows it: deaths, drains, failures, incarnations.

Small and plain on purpose: it is kept in the object's status, so that budgets and backoff survive the operator. It is
written before the acts that make it needed, so an operator that dies at any moment leaves a record that is ahead of the
world, never behind it: an incarnation may be skipped, none is given away twice.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Self

from bireme.names import GroupState, Reason
from bireme_operator.plan.actions import BINDING, Action, AdoptSpare, CreatePod


class Purpose(Enum):
    """Why a group is drained."""

    ROLL = "Roll"
    SCALE_DOWN = "ScaleDown"
    STOP = "Stop"


@dataclass(frozen=True)
class Draining:
    """A drain under way since ``since`` (Unix seconds)."""

    since: float
    purpose: Purpose

    @property
    def for_good(self) -> bool:
        """Whether the group is not to be had anew."""
        return self.purpose is not Purpose.ROLL


@dataclass(frozen=True)
class Failure:
    """Why a group is left alone. It holds while ``key`` names what is still wanted."""

    reason: Reason
    message: str
    key: str


def generation_key(generation: int) -> str:
    """Return the key of a failure that the next change of the object ends."""
    return f"generation {generation}"


@dataclass(frozen=True)
class Timing:
    """The step of its start or recovery that a group is in since ``since``, and how long those before it took.

    ``step`` is empty while the group serves; ``took`` is then that of the last start or recovery, in seconds.
    """

    step: str = ""
    since: float = 0.0
    took: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class GroupMemory:
    """One group. ``counted`` has the deaths already charged, by pod; ``deaths`` are their times, oldest first.

    ``leaving`` are pods whose end was asked for: to vanish is no death for them. ``epoch`` is the last in which the
    group served, 0 if it never did. ``restarts`` only grows. ``down_since`` is None while the group serves; ``total_s``
    is how long the last start or recovery took. ``source`` and ``model_revision`` name the checkpoint that it served.
    ``revision`` is the rendering that the group keeps to until it is rolled, ``restart`` the restart annotation that it
    was made under, ``image`` what its workers have whose template names none (see plan/images.py); all three are None
    while nobody knows. ``making`` is the incarnation that all its stages have together, 0 for a group whose stages are
    made anew one by one. ``halfway_since`` is when some stages had a place first, and others not. ``recalled`` is the
    leader pod that was asked to drain and shall not any more.
    ``announced`` is the model revision that it was last said to serve, ``refused`` why it keeps to that although
    another is wanted. ``asked`` is which nodes it was last said to leave, and why.
    """

    index: int
    since: float
    down_since: float | None
    state: GroupState = GroupState.STARTING
    total_s: float | None = None
    epoch: int = 0
    incarnations: Mapping[int, int] = field(default_factory=dict)
    counted: Mapping[str, int] = field(default_factory=dict)
    leaving: frozenset[str] = frozenset()
    deaths: tuple[float, ...] = ()
    last_death: str = ""
    restarts: int = 0
    failure: Failure | None = None
    draining: Draining | None = None
    source: str = ""
    model_revision: str = ""
    revision: str | None = None
    restart: str | None = None
    image: str | None = None
    making: int = 0
    floor: int = 0
    halfway_since: float | None = None
    recalled: str = ""
    announced: str = ""
    refused: Failure | None = None
    timing: Timing = field(default_factory=Timing)
    asked: str = ""

    @classmethod
    def new(cls, index: int, now: float, floor: int = 0) -> Self:
        """Return the memory of a group that begins now, above the incarnations of those that were before it."""
        return cls(index, now, now, floor=floor)

    def incarnation(self, stage: int) -> int:
        """Return the highest incarnation that the stage ever had, here or in a group that was before this one."""
        return max(self.incarnations.get(stage, 0), self.floor)

    def refuses(self, generation: int) -> bool:
        """Whether the group could not have the checkpoint that is wanted by this generation of the object."""
        return self.refused is not None and self.refused.key == generation_key(generation)

    def rolled(self, now: float) -> Self:
        """Return the memory of a group that is to be made anew, of what is wanted then: nothing it did counts on."""
        known = replace(self, draining=None, failure=None, deaths=(), epoch=0, down_since=now, counted={})
        known = replace(known, source="", model_revision="", announced="", refused=None)
        return replace(known, revision=None, restart=None, image=None, halfway_since=None)

    @property
    def served(self) -> bool:
        """Whether the group ever served."""
        return self.epoch > 0


def updated(known: GroupMemory, **changes: Any) -> GroupMemory:
    """Return ``known`` with these changes; itself when there are none, as most looks at most groups see no news."""
    if all(getattr(known, name) == value for name, value in changes.items()):
        return known
    return replace(known, **changes)


@dataclass(frozen=True)
class Gangless:
    """Why the native scheduler is not relied on. It holds while ``key`` names what is still asked for."""

    key: str
    why: str


@dataclass(frozen=True)
class Transition:
    """Since when a condition has its present status."""

    status: bool
    since: float


@dataclass(frozen=True)
class Progress:
    """How far the groups have come towards the rendering ``key``. ``since`` is when they last came nearer.

    ``idle`` while nothing is to be changed, ``failed`` has why the rollout was given up, ``failed_by`` in one word.
    ``trial_since`` is when the canary came to serve, ``passed`` has the numbers with which it has passed. ``resume`` is
    the resume annotation under which it goes on.
    """

    key: str
    since: float
    updated: int = 0
    idle: bool = False
    failed: str = ""
    failed_by: Reason = Reason.PROGRESS_DEADLINE_EXCEEDED
    trial_since: float | None = None
    passed: str = ""
    resume: str = ""


@dataclass(frozen=True)
class Scaling:
    """The autoscaler's decision: so many ``replicas``, for as long as `spec.replicas` is ``seed``.

    ``lower`` is the most that was needed since ``lower_since``, from when on fewer would have done. ``idle_since`` is
    when there was no request for the first time, None while there are any.
    """

    seed: int
    replicas: int
    since: float
    lower_since: float | None = None
    lower: int = 0
    idle_since: float | None = None


@dataclass(frozen=True)
class Memory:
    """The whole deployment. ``floor`` is the highest incarnation of any group that is gone.

    ``good`` names the last rendering with which every group served. ``sources`` has what each model revision that has
    served is the name of (see plan/naming.py). ``spares`` is the highest number that a standby pod has had;
    those up to ``stale_spares`` have another image than is wanted now. ``images`` has the image of each revision since
    the restart annotation is ``restart`` (see plan/images.py), which is None while nobody has noted any.
    """

    groups: Mapping[int, GroupMemory] = field(default_factory=dict)
    conditions: Mapping[str, Transition] = field(default_factory=dict)
    floor: int = 0
    progress: Progress | None = None
    good: str = ""
    sources: Mapping[str, str] = field(default_factory=dict)
    spares: int = 0
    scaling: Scaling | None = None
    gangless: Gangless | None = None
    images: Mapping[str, str] = field(default_factory=dict)
    restart: str | None = None
    stale_spares: int = 0


def intent(after: Memory, actions: Sequence[Action]) -> Memory | None:
    """Return what must be kept before a plan is carried out, or None when nothing that it does would be missed.

    All of it but one thing: that the pods exist. One that was never made has not died when it is not there.
    """
    if not any(isinstance(action, BINDING) for action in actions):
        return None
    return without_pods(after, [action.name for action in actions if isinstance(action, CreatePod | AdoptSpare)])


def without_pods(memory: Memory, names: Collection[str]) -> Memory:
    """Return the memory without pods that were planned and could not be made: their absence is no death."""
    if not names:
        return memory
    missing = frozenset(names)
    groups = {
        index: group if missing.isdisjoint(group.counted) else _without(group, missing)
        for index, group in memory.groups.items()
    }
    return replace(memory, groups=groups)


def _without(group: GroupMemory, missing: frozenset[str]) -> GroupMemory:
    return replace(group, counted={name: deaths for name, deaths in group.counted.items() if name not in missing})
