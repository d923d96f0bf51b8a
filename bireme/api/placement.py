"""Where a group's stages may run, relative to one another and to other groups."""

from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import Field

from bireme.api.base import ApiModel
from bireme.api.types import LABEL_KEY, ObjectName


class TopologyMode(StrEnum):
    """How binding a topology level is."""

    REQUIRED = "Required"
    PREFERRED = "Preferred"


class Exclusivity(StrEnum):
    """Whether groups may share a topology domain."""

    NONE = "None"
    DOMAIN = "Domain"


class Scheduler(StrEnum):
    """Who sees to it that a group starts whole or not at all."""

    AUTO = "Auto"
    GATES = "Gates"
    NATIVE = "Native"
    KUEUE = "Kueue"


class TopologyLevel(ApiModel):
    """One level of the topology that holds a whole group together."""

    key: Annotated[str, Field(max_length=317, pattern=LABEL_KEY)]
    """Node label whose value names the domain. Example: `nvidia.com/gpu.clique`."""
    mode: TopologyMode = TopologyMode.REQUIRED
    """Required (default): the group waits until one domain holds it. Preferred: it may be spread."""


class Placement(ApiModel):
    """Where the stages of a group run."""

    at: ClassVar[str] = "spec.placement"

    topology: Annotated[tuple[TopologyLevel, ...], Field(max_length=4)] = ()
    """Levels that a group should share, narrowest first. Default none: stages go where they fit."""
    exclusive: Exclusivity = Exclusivity.NONE
    """None (default): groups may share a domain. Domain: one group per domain of the first required level."""
    scheduler: Scheduler = Scheduler.AUTO
    """Who places a group whole. Auto (default) takes Gates when topology or exclusive is set. Native needs Kubernetes
    1.37 with gang scheduling on, Kueue needs queueName."""
    queue_name: ObjectName | None = None
    """Kueue LocalQueue that admits the groups. Default none."""
