"""What happens when a part of a group is lost, and when to stop trying."""

from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import Field

from bireme.api.base import ApiModel, Rule
from bireme.api.types import PositiveSeconds


class RecoveryMode(StrEnum):
    """How much of a group is replaced."""

    IN_PLACE = "InPlace"
    RECREATE = "Recreate"


class RestartBudget(ApiModel):
    """How many restarts a group may need before it is left Failed."""

    limit: Annotated[int, Field(ge=0, le=1000)] = 6
    """Restarts of a group's parts within the window. Default 6. 0 makes the first loss final."""
    window_seconds: PositiveSeconds = 3600
    """Length of the sliding window. Default 3600."""


class Backoff(ApiModel):
    """How long the next start waits after repeated failures; the wait doubles from initial to max."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "self.initialSeconds <= self.maxSeconds",
            lambda self: self.initial_seconds <= self.max_seconds,
            "set initialSeconds to maxSeconds or less",
            field="initialSeconds",
        ),
    )

    initial_seconds: PositiveSeconds = 1
    """Wait before the second start; the first follows at once. Default 1."""
    max_seconds: PositiveSeconds = 300
    """Longest wait. Default 300."""


class Recovery(ApiModel):
    """What happens when a part of a group is lost. A change touches no pod."""

    at: ClassVar[str] = "spec.recovery"

    mode: RecoveryMode = RecoveryMode.IN_PLACE
    """InPlace (default): only what was lost is replaced, survivors keep their weights. Recreate: the whole group."""
    node_lost_after_seconds: Annotated[int, Field(ge=5, le=3600)] = 20
    """How long a node's Lease must be silent before its stages are replaced. Default 20."""
    restart_budget: RestartBudget = Field(default_factory=RestartBudget)
    """Restarts per group before it becomes Failed; annotation `bireme.dev/restart` or another spec resumes it."""
    backoff: Backoff = Field(default_factory=Backoff)
    """Waits between repeated starts of a group's parts."""
