"""Who sees to it that a group is placed whole, as `spec.placement` has it."""

from enum import Enum

from bireme.api.placement import Exclusivity, Placement, Scheduler, TopologyMode
from bireme_operator.plan.places import Topology


class Gang(Enum):
    """NONE leaves each stage to the scheduler by itself."""

    NONE = "None"
    GATES = "Gates"
    NATIVE = "Native"
    KUEUE = "Kueue"


def gang_of(placement: Placement) -> Gang:
    """Return the provider; Auto takes Kueue for a queue, Gates where stages must be near one another or apart."""
    if placement.scheduler is not Scheduler.AUTO:
        return Gang(placement.scheduler.value)
    if placement.queue_name is not None:
        return Gang.KUEUE
    near = bool(placement.topology) or placement.exclusive is not Exclusivity.NONE
    return Gang.GATES if near else Gang.NONE


def topology_of(placement: Placement) -> Topology:
    """Return the levels of the topology by how binding they are, each narrowest first."""
    required = tuple(level.key for level in placement.topology if level.mode is TopologyMode.REQUIRED)
    preferred = tuple(level.key for level in placement.topology if level.mode is TopologyMode.PREFERRED)
    return Topology(required, preferred, placement.exclusive is Exclusivity.DOMAIN)
