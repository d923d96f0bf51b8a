"""Who sees to it that a group is placed whole, as `spec.placement` has it.

Native gangs are off by default in Kubernetes, and a scheduler that keeps none places each stage by itself without a
word. Where that comes out, Gates takes its place, until somebody asks for it anew.
"""

from enum import Enum
from typing import Final

from bireme.api import InferenceDeployment
from bireme.api.placement import Exclusivity, Placement, Scheduler, TopologyMode
from bireme.names import Annotation
from bireme_operator.plan.places import Topology


class Gang(Enum):
    """NONE leaves each stage to the scheduler by itself."""

    NONE = "None"
    GATES = "Gates"
    NATIVE = "Native"
    KUEUE = "Kueue"


NO_GANGS: Final = "this cluster keeps no native gangs: "
"""How all begins that is said about it."""
HEEDED_S: Final = 10.0
"""A scheduler that keeps gangs says so in the PodGroup right after it has refused a stage of one."""


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


def with_gates(asked: InferenceDeployment) -> InferenceDeployment:
    """Return the same with Gates in the place of the native scheduler."""
    placement = asked.spec.placement.model_copy(update={"scheduler": Scheduler.GATES})
    return asked.model_copy(update={"spec": asked.spec.model_copy(update={"placement": placement})})


def gang_key(asked: InferenceDeployment) -> str:
    """Name what must be asked anew before the native scheduler is tried again."""
    spec = asked.spec
    scheduler = spec.template.spec.get("schedulerName", "")
    resume = asked.metadata.annotations.get(Annotation.RESUME, "")
    return f"{spec.placement.model_dump_json()} {scheduler} {resume}".strip()


def no_gangs(why: str, *, gates: str = "GenericWorkload=true", sees_nodes: bool) -> str:
    """Say why there are no native gangs, what to turn on, and what is done meanwhile."""
    then = (
        "Gates places the groups" if sees_nodes else "nobody does: an operator without --all-namespaces sees no nodes"
    )
    return (
        f"{NO_GANGS}{why}; run kube-apiserver, kube-scheduler and kube-controller-manager 1.37 or later with "
        f"--feature-gates={gates} and kube-apiserver with --runtime-config=scheduling.k8s.io/v1beta1=true, "
        f"then call `bireme resume`; until then {then}"
    )
