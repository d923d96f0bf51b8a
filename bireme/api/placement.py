"""Where a group's stages may run, relative to one another and to other groups."""

from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import Field

from bireme.api.base import ApiModel, Rule
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
    """Where the stages of a group run. A change holds for groups that are made from then on."""

    at: ClassVar[str] = "spec.placement"
    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "self.exclusive != 'Domain' || (has(self.topology) && self.topology.exists(one, one.mode == 'Required'))",
            lambda self: self.exclusive is not Exclusivity.DOMAIN or bool(self.required_levels()),
            "set a topology level to mode Required: exclusive Domain is about the domains of the first one",
            field="exclusive",
        ),
        Rule(
            "self.scheduler != 'Kueue' || has(self.queueName)",
            lambda self: self.scheduler is not Scheduler.KUEUE or self.queue_name is not None,
            "set queueName: Kueue admits a group by its LocalQueue",
            field="queueName",
        ),
        Rule(
            "!has(self.queueName) || self.scheduler == 'Kueue' || self.scheduler == 'Auto'",
            lambda self: self.queue_name is None or self.scheduler in {Scheduler.KUEUE, Scheduler.AUTO},
            "set scheduler to Kueue, or leave queueName out",
            field="scheduler",
        ),
        Rule(
            "!(self.scheduler in ['Native', 'Kueue']) || !has(self.topology) || self.topology.size() <= 1",
            lambda self: self.scheduler not in {Scheduler.NATIVE, Scheduler.KUEUE} or len(self.topology) <= 1,
            "set one topology level at most, or scheduler to Gates: no other scheduler takes several",
            field="topology",
        ),
        Rule(
            "self.scheduler != 'Native' || !has(self.topology) || self.topology.all(one, one.mode == 'Required')",
            lambda self: self.scheduler is not Scheduler.NATIVE or len(self.required_levels()) == len(self.topology),
            "set mode to Required, or scheduler to Gates: the native scheduler knows no preferred topology",
            field="topology",
        ),
        Rule(
            "self.scheduler == 'Gates' || self.scheduler == 'Auto' || self.exclusive != 'Domain'",
            lambda self: (
                self.scheduler in {Scheduler.GATES, Scheduler.AUTO} or self.exclusive is not Exclusivity.DOMAIN
            ),
            "set scheduler to Gates: only it keeps groups out of one another's domains",
            field="scheduler",
        ),
    )

    topology: Annotated[tuple[TopologyLevel, ...], Field(max_length=4)] = ()
    """Levels that a group should share, narrowest first. Default none: stages go where they fit."""
    exclusive: Exclusivity = Exclusivity.NONE
    """None (default): groups may share a domain. Domain: one group per domain of the first required level."""
    scheduler: Scheduler = Scheduler.AUTO
    """Who places a group whole. Auto (default) takes Gates when topology or exclusive is set. Native needs Kubernetes
    1.37 with gang scheduling on, Kueue needs queueName."""
    queue_name: ObjectName | None = None
    """Kueue LocalQueue that admits the groups. Default none."""

    def required_levels(self) -> list[str]:
        """Return the keys of the levels that bind, narrowest first."""
        return [level.key for level in self.topology if level.mode is TopologyMode.REQUIRED]
