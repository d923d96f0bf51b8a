"""What the gang providers need of a pod: our scheduling gate, a PodGroup of the native scheduler, or Kueue's labels."""

from typing import Any, Final

from bireme.api.deployment import Spec
from bireme.names import Label
from bireme_operator.plan.actions import CreatePod
from bireme_operator.plan.providers import Gang, gang_of, topology_of
from bireme_operator.render.owned import Object, Owner, metadata

GATE: Final = "bireme.dev/gang"
"""Name of the scheduling gate of our own placing."""
ROLE: Final = "gang"
_KUEUE: Final = "kueue.x-k8s.io"


def pod_group_name(owner: Owner, made: CreatePod) -> str:
    """Return a name for this making of the group: a PodGroup that was scheduled once stays so."""
    return f"{owner.name}-{made.group}-{made.incarnation}"


def gang_of_pod(made: CreatePod, owner: Owner, spec: Spec) -> Object:
    """Return what is merged into a stage pod so that its group is placed whole."""
    match gang_of(spec.placement):
        case Gang.GATES:
            return {"spec": {"schedulingGates": [{"name": GATE}]}}
        case Gang.NATIVE:
            return {"spec": {"schedulingGroup": {"podGroupName": pod_group_name(owner, made)}}}
        case Gang.KUEUE:
            return {"metadata": _kueue(made, owner, spec)}
        case Gang.NONE:
            return {}


def render_pod_group(made: CreatePod, owner: Owner, spec: Spec) -> Object | None:
    """Return the PodGroup that must be there before its pods, where there is one."""
    if gang_of(spec.placement) is not Gang.NATIVE:
        return None
    stages = spec.parallelism.pipeline
    wanted: dict[str, Any] = {
        "schedulingPolicy": {"gang": {"minCount": stages}},
        "disruptionMode": {"all": {}},
    }
    priority = spec.template.spec.get("priorityClassName")
    wanted |= {"priorityClassName": priority} if priority else {}
    required = topology_of(spec.placement).required
    wanted |= {"schedulingConstraints": {"topology": [{"key": required[0]}]}} if required else {}
    labels = {Label.GROUP_INDEX.value: str(made.group), Label.INCARNATION.value: str(made.incarnation)}
    return {
        "apiVersion": "scheduling.k8s.io/v1beta1",
        "kind": "PodGroup",
        "metadata": metadata(owner, pod_group_name(owner, made), ROLE, labels),
        "spec": wanted,
    }


def _kueue(made: CreatePod, owner: Owner, spec: Spec) -> Object:
    labels = {f"{_KUEUE}/pod-group-name": pod_group_name(owner, made)}
    if spec.placement.queue_name is not None:
        labels |= {f"{_KUEUE}/queue-name": spec.placement.queue_name}
    annotations = {
        f"{_KUEUE}/pod-group-total-count": str(spec.parallelism.pipeline),
        f"{_KUEUE}/pod-group-serving": "true",
    }
    topology = topology_of(spec.placement)
    annotations |= {f"{_KUEUE}/podset-required-topology": key for key in topology.required[:1]}
    annotations |= {f"{_KUEUE}/podset-preferred-topology": key for key in topology.preferred[:1]}
    return {"labels": labels, "annotations": annotations}
