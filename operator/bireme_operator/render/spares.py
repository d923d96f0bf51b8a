"""Pods that stand by: a stage pod without a place in any group, and without the name by which its peers would find it.

Their token is their own. Whoever adopts one gives it the token of its group.
"""

from typing import Final

from bireme.api.deployment import Spec
from bireme.api.local import WORKER_CONTAINER
from bireme.names import Env, Label
from bireme_operator.plan.actions import AdoptSpare, CreatePod, CreateSpare
from bireme_operator.render.owned import Object, Owner, metadata
from bireme_operator.render.pods import COMPONENT, LEADER, STAGE, render_pod
from bireme_operator.render.tokens import group_token

STANDS_BY: Final = "spare"
"""Value of the stage label, role and component of a pod that is nobody's yet."""
_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
_PLACE: Final = (Label.GROUP_INDEX.value, Label.INCARNATION.value)
_IDENTITY: Final = (Env.GROUP_UID, Env.GROUP_INDEX, Env.STAGE, Env.INCARNATION, Env.LEADER_ADDRESS)


def spare_token(master_key: bytes, owner: Owner) -> str:
    """Return the token of the standby pods of a deployment, hex."""
    return group_token(master_key, f"{owner.uid}-{STANDS_BY}")


def spare_secret_name(owner: Owner) -> str:
    """Return the name of the Secret that has it."""
    return f"{owner.name}-spares-{owner.uid[:8]}"


def render_spare_secret(owner: Owner, master_key: bytes) -> Object:
    """Return the Secret with the token of the standby pods."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": metadata(owner, spare_secret_name(owner), "tokens"),
        "type": "Opaque",
        "immutable": True,
        "stringData": {"0": spare_token(master_key, owner)},
    }


def render_spare(made: CreateSpare, owner: Owner, spec: Spec) -> Object:
    """Return the manifest of one standby pod: that of a stage, less all that says which.

    Raises:
        InvalidTemplate: `spec.template` sets what Bireme decides.
    """
    stage = CreatePod(made.name, 0, 0, 0, made.revision, made.model_revision, made.environment, made.image)
    pod = render_pod(stage, owner, spec, token_secret=spare_secret_name(owner))
    labels = {name: value for name, value in pod["metadata"]["labels"].items() if name not in _PLACE}
    labels |= {Label.STAGE.value: STANDS_BY, Label.ROLE.value: STANDS_BY, COMPONENT: STANDS_BY}
    pod["metadata"]["labels"] = labels | {Label.SPARE.value: str(made.number)}
    for name in ("hostname", "subdomain"):
        pod["spec"].pop(name)
    _fear_nobody(pod)
    worker = next(one for one in pod["spec"]["containers"] if one["name"] == WORKER_CONTAINER)
    worker["env"] = [one for one in worker["env"] if one["name"] not in _IDENTITY]
    worker["env"].append({"name": Env.STANDBY.value, "value": "1"})
    return pod


def _fear_nobody(pod: Object) -> None:
    """Take out what keeps a stage apart from its predecessor: a spare has none."""
    affinity = pod["spec"].pop("affinity")
    apart = dict(affinity["podAntiAffinity"])
    apart[_REQUIRED] = [one for one in apart[_REQUIRED] if Label.GROUP_INDEX not in _labels_of(one)]
    apart = {kind: terms for kind, terms in apart.items() if terms}
    if kept := {kind: wishes for kind, wishes in {**affinity, "podAntiAffinity": apart}.items() if wishes}:
        pod["spec"]["affinity"] = kept


def _labels_of(term: Object) -> Object:
    return (term.get("labelSelector") or {}).get("matchLabels") or {}


def adoption(adopted: AdoptSpare) -> dict[str, str]:
    """Return the labels of a stage for a pod that becomes one."""
    return {
        Label.GROUP_INDEX.value: str(adopted.group),
        Label.STAGE.value: str(adopted.stage),
        Label.INCARNATION.value: str(adopted.incarnation),
        Label.MODEL_REVISION.value: adopted.model_revision,
        Label.ROLE.value: STAGE if adopted.stage else LEADER,
        COMPONENT: WORKER_CONTAINER,
    }
