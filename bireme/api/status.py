"""What the operator says about a deployment: written by it alone, read by people, kubectl, Helm and kstatus.

Times are RFC 3339 strings. States are the words of `bireme.names`; reasons stay plain strings in the CRD, so that an
operator with a new reason can still write its status while the CRD is a release behind.
"""

from enum import StrEnum
from typing import Annotated, Final

from pydantic import Field

from bireme.api.base import ApiModel
from bireme.api.types import CAMEL_CASE, MAX_REPLICAS, MAX_STAGES, Counter, ListKeys, Milliseconds, Revision, Text, Time
from bireme.names import GroupState

MAX_GROUPS: Final = 2 * MAX_REPLICAS  # replicas and as many surge groups

Word = Annotated[str, Field(max_length=64, pattern=CAMEL_CASE)]
NodeName = Annotated[str, Field(max_length=253)]


class ConditionStatus(StrEnum):
    """Whether a condition holds."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class Condition(ApiModel):
    """One condition, as in every Kubernetes API."""

    type: Word
    """Ready, Available, Progressing, Scheduled, Reconciling or Stalled."""
    status: ConditionStatus
    """True, False or Unknown."""
    reason: Word
    """One word for programs."""
    message: Text = ""
    """A sentence for people, with the numbers."""
    last_transition_time: Time
    """When status last changed."""
    observed_generation: Counter = 0
    """The metadata.generation that was judged."""


class GroupTimings(ApiModel):
    """How long the steps of the group's last start or recovery took; a step that did not happen is absent."""

    detect_milliseconds: Milliseconds | None = None
    """From the last sign of life of what was lost until its leader, or the operator, knew of the loss. Of a node: until
    two witnesses called it lost."""
    schedule_milliseconds: Milliseconds | None = None
    """Until every stage had a place to run."""
    start_milliseconds: Milliseconds | None = None
    """Until every stage's process ran, image pull included."""
    load_milliseconds: Milliseconds | None = None
    """Until every rank had its weights."""
    rendezvous_milliseconds: Milliseconds | None = None
    """Until the stages had formed an epoch."""
    warm_milliseconds: Milliseconds | None = None
    """Until the first step had run."""
    total_milliseconds: Milliseconds | None = None
    """From the cause to serving: of a recovery from that last sign of life."""


class GroupStatus(ApiModel):
    """One group: one copy of the model."""

    index: Counter
    """Index of the group, from 0; stable while the group lives."""
    epoch: Counter = 0
    """Membership number of the stages that serve together; grows with every recovery. 0 before the first."""
    revision: Revision = ""
    """Pod revision of the group."""
    model_revision: Revision = ""
    """Checkpoint that the group serves."""
    state: GroupState
    """What the group does now."""
    reason: Word
    """Why, in one word."""
    message: Text = ""
    """What is waited for, in a sentence with the numbers."""
    nodes: Annotated[tuple[NodeName, ...], Field(max_length=MAX_STAGES)] = ()
    """Node of each stage, in stage order; empty for a stage without one."""
    restarts: Counter = 0
    """Restarts of the group's parts that the restart budget has counted since the group was made."""
    since: Time
    """When the group came into this state."""
    timings: GroupTimings = Field(default_factory=GroupTimings)
    """How long the steps of the last start or recovery took."""


class Status(ApiModel):
    """What is. Written by the operator only."""

    observed_generation: Counter = 0
    """The metadata.generation that this status is about."""
    replicas: Counter = 0
    """Groups that exist."""
    desired_replicas: Counter = 0
    """Groups that are wanted now: `spec.replicas`, or what the autoscaler has made of it."""
    ready_replicas: Counter = 0
    """Groups that serve."""
    updated_replicas: Counter = 0
    """Groups of the wanted pod and model revision."""
    available_replicas: Counter = 0
    """Groups that serve requests now; a draining group is not one."""
    restarts: Counter = 0
    """Sum of the groups' restarts."""
    selector: Annotated[str, Field(max_length=1024)] = ""
    """Label selector of the leader pods, for a HorizontalPodAutoscaler: its averages are per group."""
    topology: Annotated[str, Field(max_length=32)] = ""
    """Tensor × pipeline of a group, such as `8x2`."""
    current_revision: Revision = ""
    """Pod revision that the groups come from."""
    update_revision: Revision = ""
    """Pod revision that the groups go to."""
    model_revision: Revision = ""
    """Checkpoint that all serving groups have, empty while they differ."""
    restart: Text = ""
    """Value of the annotation `bireme.dev/restart` that this status is about."""
    resume: Text = ""
    """Value of the annotation `bireme.dev/resume` that this status is about."""
    conditions: Annotated[tuple[Condition, ...], Field(max_length=16), ListKeys("type")] = ()
    """All known conditions, set from the first visit on."""
    groups: Annotated[tuple[GroupStatus, ...], Field(max_length=MAX_GROUPS)] = ()
    """The groups, by index."""
    memory: Annotated[str, Field(max_length=1_048_576)] = ""
    """What the operator must not forget when it starts again: deaths counted, drains under way, incarnations given.
    Compressed; for the operator only. Clear it and every group has a fresh restart budget."""
