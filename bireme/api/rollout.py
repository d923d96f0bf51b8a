"""How a change reaches the groups, and how much capacity planned and unplanned absence may cost."""

from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import Field

from bireme.api.base import ApiModel, Rule, at_least_one
from bireme.api.types import GroupCount, Percent, PositiveSeconds, Seconds


class OnFailure(StrEnum):
    """What a failed rollout does."""

    ROLLBACK = "Rollback"
    PAUSE = "Pause"


class OnCordon(StrEnum):
    """What a cordoned node means to the groups on it."""

    MOVE = "Move"
    IGNORE = "Ignore"


class Canary(ApiModel):
    """A first few groups of a new revision or checkpoint, judged by the router's figures before the rest follows.

    They get their share of the requests, as the other groups do, and are compared with these over the same time.
    """

    groups: Annotated[int, Field(ge=1, le=100)] = 1
    """Groups that get the new revision first. Default 1; one group at least stays as it was, if there is room."""
    analysis_seconds: PositiveSeconds = 600
    """How long they are observed. Default 600."""
    min_requests: Annotated[int, Field(ge=1, le=1_000_000)] = 100
    """Requests needed for a judgement; with fewer the rollout holds. Default 100."""
    max_error_percent: Percent = 1
    """Highest share of failed requests, in percent, unless the other groups fail as often. Default 1."""
    max_slowdown_percent: Annotated[int, Field(ge=0, le=1000)] = 20
    """How much slower the first token and the gaps between tokens may be than on the other groups, on average and in
    percent. Default 20."""


class Rollout(ApiModel):
    """How a change of the pods or the checkpoint reaches the groups."""

    at: ClassVar[str] = "spec.rollout"
    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "self.maxSurge + self.maxUnavailable > 0",
            lambda self: self.max_surge + self.max_unavailable > 0,
            "set maxSurge or maxUnavailable to 1 or more: with both 0 no group could ever be replaced",
        ),
    )

    max_surge: GroupCount = 1
    """Groups above spec.replicas during a rollout. Default 1; needs free devices."""
    max_unavailable: GroupCount = 0
    """Groups below spec.replicas that a rollout may cause. Default 0. Set 1, and maxSurge 0, in a full cluster."""
    partition: GroupCount = 0
    """Groups that stay on the old revision. Default 0. Lower it step by step to stage a rollout."""
    drain_timeout_seconds: Annotated[int, Field(ge=0, le=86_400)] = 300
    """How long running requests may finish before they are handed over to another group, at every voluntary stop.
    Default 300. It is also the pods' grace period."""
    progress_deadline_seconds: PositiveSeconds = 1800
    """How long a rollout may make no progress before it has failed. Default 1800; loading a large model counts."""
    on_failure: OnFailure = OnFailure.ROLLBACK
    """Rollback (default) returns to the last good revision. Pause leaves the groups as they are."""
    canary: Canary | None = None
    """Judge a few groups first; who fails, or is too slow, is dealt with by onFailure. Default none."""


class Disruption(ApiModel):
    """How much capacity node drains and other voluntary disruptions may take.

    A group that is to leave its node is built elsewhere first, and goes when its successor serves.
    """

    at: ClassVar[str] = "spec.disruption"

    max_unavailable_groups: Annotated[int, Field(ge=0, le=100)] = 1
    """Groups that move at the same time and, where there is no room for a successor, that may be stopped without one;
    the last serving group never is. Default 1; with 0 one group moves at a time, and none without a successor."""
    on_cordon: OnCordon = OnCordon.MOVE
    """Move (default) builds a group elsewhere when one of its nodes is cordoned, or gets a taint that keeps it away.
    Ignore lets it stay."""


class Autoscaling(ApiModel):
    """Bireme's own autoscaler (`docs/autoscaling.md`). `spec.replicas` is what it begins with; its decision stands in
    `status.desiredReplicas`. Do not point a HorizontalPodAutoscaler at the same object: its number is followed then.
    """

    rules: ClassVar[tuple[Rule, ...]] = (
        at_least_one("targetQueuedRequests", "targetTTFTMilliseconds", "idleToZeroSeconds"),
        Rule(
            "self.minReplicas <= self.maxReplicas",
            lambda self: self.min_replicas <= self.max_replicas,
            "set minReplicas to maxReplicas or less",
            field="minReplicas",
        ),
        Rule(
            "!has(self.idleToZeroSeconds) || self.minReplicas == 0",
            lambda self: self.idle_to_zero_seconds is None or self.min_replicas == 0,
            "set minReplicas to 0 to allow idleToZeroSeconds",
            field="idleToZeroSeconds",
        ),
    )

    min_replicas: GroupCount = 1
    """Fewest groups. Default 1."""
    max_replicas: Annotated[int, Field(ge=1, le=1000)]
    """Most groups."""
    target_queued_requests: Annotated[int, Field(ge=1, le=100_000)] | None = None
    """Waiting requests per group that are aimed at. Default: not looked at."""
    target_ttft_milliseconds: Annotated[int, Field(ge=1, le=3_600_000)] | None = Field(
        None, alias="targetTTFTMilliseconds"
    )
    """Time to the first token that is aimed at, 95th percentile of a minute, the wait in the router included, in
    milliseconds. Default: not looked at."""
    stabilization_seconds: Seconds = 300
    """How long a lower need must last before groups are removed. Default 300. More are made at once."""
    idle_to_zero_seconds: PositiveSeconds | None = None
    """Time without a request after which all groups are removed. Default never; needs minReplicas 0. A request that
    comes then waits in the router for the group that it brings back: see router.limits.queueTimeoutSeconds."""
