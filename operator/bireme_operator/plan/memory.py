"""What must be remembered between two looks, because no look shows it: deaths, drains, failures, incarnations.

Small and plain on purpose: it is kept in the object's status, so that budgets and backoff survive the operator.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Self

from bireme.names import GroupState, Reason


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


@dataclass(frozen=True)
class Failure:
    """Why a group is left alone. It holds while ``key`` names what is still wanted."""

    reason: Reason
    message: str
    key: str


@dataclass(frozen=True)
class GroupMemory:
    """One group. ``counted`` has the deaths already charged, by pod; ``deaths`` are their times, oldest first.

    ``leaving`` are pods whose end was asked for: to vanish is no death for them. ``epoch`` is the last in which the
    group served, 0 if it never did. ``restarts`` only grows. ``down_since`` is None while the group serves; ``total_s``
    is how long the last start or recovery took. ``source`` and ``model_revision`` name the checkpoint that it served.
    ``revision`` is the rendering that the group keeps to until it is rolled, ``restart`` the restart annotation that it
    was made under; both are None while nobody knows. ``making`` is the incarnation that all its stages have together,
    0 for a group whose stages are made anew one by one. ``halfway_since`` is when some stages had a place first, and
    others not.
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
    making: int = 0
    floor: int = 0
    halfway_since: float | None = None

    @classmethod
    def new(cls, index: int, now: float, floor: int = 0) -> Self:
        """Return the memory of a group that begins now, above the incarnations of those that were before it."""
        return cls(index, now, now, floor=floor)

    def incarnation(self, stage: int) -> int:
        """Return the highest incarnation that the stage ever had, here or in a group that was before this one."""
        return max(self.incarnations.get(stage, 0), self.floor)

    def rolled(self, now: float) -> Self:
        """Return the memory of a group that is to be made anew, of what is wanted then: nothing it did counts on."""
        known = replace(self, draining=None, failure=None, deaths=(), epoch=0, down_since=now, counted={})
        return replace(known, source="", model_revision="", revision=None, restart=None, halfway_since=None)

    @property
    def served(self) -> bool:
        """Whether the group ever served."""
        return self.epoch > 0


@dataclass(frozen=True)
class Transition:
    """Since when a condition has its present status."""

    status: bool
    since: float


@dataclass(frozen=True)
class Progress:
    """How far the groups have come towards the rendering ``key``. ``since`` is when they last came nearer.

    ``idle`` while nothing is to be changed, ``failed`` has why the rollout was given up.
    """

    key: str
    since: float
    updated: int = 0
    idle: bool = False
    failed: str = ""


@dataclass(frozen=True)
class Memory:
    """The whole deployment. ``floor`` is the highest incarnation of any group that is gone.

    ``good`` names the last rendering with which every group served.
    """

    groups: Mapping[int, GroupMemory] = field(default_factory=dict)
    conditions: Mapping[str, Transition] = field(default_factory=dict)
    floor: int = 0
    progress: Progress | None = None
    good: str = ""


def intent(before: Memory, after: Memory) -> Memory | None:
    """Return what must be kept before a plan is carried out: that groups are drained, or None if none is newly so.

    An operator that ends groups and dies before it could say why would make them again as they were.
    """
    drained = {
        index: replace(before.groups[index], draining=group.draining)
        for index, group in after.groups.items()
        if index in before.groups and group.draining != before.groups[index].draining and group.draining
    }
    return replace(before, groups={**before.groups, **drained}) if drained else None


def without_pods(memory: Memory, names: Collection[str]) -> Memory:
    """Return the memory without pods that were planned and could not be made: their absence is no death."""
    if not names:
        return memory
    groups = {
        index: replace(group, counted={name: deaths for name, deaths in group.counted.items() if name not in names})
        for index, group in memory.groups.items()
    }
    return replace(memory, groups=groups)
