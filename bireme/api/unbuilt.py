"""The fields whose behaviour does not exist yet: the one table that refuses them, in pydantic and in the CRD alike.

A field here must keep its default; nothing is accepted and ignored. To build one: delete its line, run `make crds`.
Each line says which part of the work brings the behaviour and what to do until then.
"""

from enum import StrEnum
from typing import Final


class Plan(StrEnum):
    """The part of the work that will bring a field's behaviour."""

    ENGINE = "the complete engine"
    OPERATOR = "the cluster operator"
    ROUTER = "the complete router"
    DOWNLOAD = "checkpoint download"


UNBUILT: Final[dict[str, tuple[Plan, str]]] = {
    "spec.model.source.image": (Plan.OPERATOR, "mount the files by spec.template and set source.path"),
    "spec.model.source.hub": (Plan.DOWNLOAD, "download the checkpoint first and set source.path"),
    "spec.model.source.objectStore": (Plan.DOWNLOAD, "download the checkpoint first and set source.path"),
    "spec.model.quantization": (Plan.ENGINE, "the checkpoint runs in spec.model.dtype"),
    "spec.engine.type": (Plan.OPERATOR, "Bireme's own engine is the only one"),
    "spec.engine.args": (Plan.OPERATOR, "Bireme's own engine takes the named fields of spec.engine"),
    "spec.engine.kvCache.fraction": (Plan.ENGINE, "set kvCache.bytes"),
    "spec.engine.kvCache.dtype": (Plan.ENGINE, "the cache has the model's dtype"),
    "spec.placement.topology": (Plan.OPERATOR, "use nodeSelector or affinity in spec.template"),
    "spec.placement.exclusive": (Plan.OPERATOR, "use podAntiAffinity in spec.template"),
    "spec.placement.scheduler": (Plan.OPERATOR, "stages are placed one by one"),
    "spec.placement.queueName": (Plan.OPERATOR, "stages are not queued by Kueue"),
    "spec.rollout.maxSurge": (Plan.OPERATOR, "apply a second deployment to try a change beside the first"),
    "spec.rollout.maxUnavailable": (Plan.OPERATOR, "groups are replaced one at a time"),
    "spec.rollout.partition": (Plan.OPERATOR, "apply a second deployment to hold a change back"),
    "spec.rollout.progressDeadlineSeconds": (Plan.OPERATOR, "read condition Progressing"),
    "spec.rollout.onFailure": (Plan.OPERATOR, "apply the earlier file to go back"),
    "spec.rollout.canary": (Plan.OPERATOR, "apply a second deployment to try a change beside the first"),
    "spec.recovery.mode": (Plan.OPERATOR, "a lost stage alone is replaced, survivors keep their weights"),
    "spec.spares": (Plan.OPERATOR, "one more group in spec.replicas is the spare"),
    "spec.autoscaling": (Plan.OPERATOR, "set spec.replicas, by hand or by a HorizontalPodAutoscaler"),
    "spec.disruption.maxUnavailableGroups": (Plan.OPERATOR, "drain one node at a time"),
    "spec.router.replicas": (Plan.ROUTER, "one router serves all groups"),
    "spec.router.retry.crossRevision": (Plan.ROUTER, "a stream goes on only on the model revision that began it"),
    "spec.router.apiKeysSecretRef": (Plan.ROUTER, "put a proxy that checks keys before the router"),
    "spec.router.tls": (Plan.ROUTER, "put a proxy that ends TLS before the router"),
    "spec.router.template": (Plan.OPERATOR, "the router's pod has no settings yet"),
}


def fields_of(parent: str) -> list[str]:
    """Return the names of the unbuilt fields right under the path ``parent``, in the table's order."""
    return [path.rpartition(".")[2] for path in UNBUILT if path.rpartition(".")[0] == parent]


def message(path: str, default: object) -> str:
    """Return the instruction for somebody who has set the field at ``path``."""
    plan, until_then = UNBUILT[path]
    keep = f"keep its default {default}" if isinstance(default, int | str) else "leave it out"
    return f"not built yet, planned with {plan}: {keep}; until then {until_then}"
