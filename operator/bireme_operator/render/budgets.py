"""A disruption budget for each group that serves: the Eviction API takes all of its pods or none.

A budget that counted pods of several groups would allow the loss of one pod in each of them. It only holds an eviction
back until the group has moved, so there is none where nobody watches for cordons.
"""

from collections.abc import Mapping
from typing import Any, Final

from bireme.api.local import WORKER_CONTAINER
from bireme.names import Label
from bireme_operator.render.owned import Object, Owner, metadata
from bireme_operator.render.pods import COMPONENT, LEADER, STAGE

BUDGET: Final = "budget"


def budget_name(owner: Owner, group: int) -> str:
    """Return the name of a group's budget."""
    return f"{owner.name}-{group}"


def render_budget(owner: Owner, group: int, stages: int) -> Object:
    """Return the budget of a group of ``stages`` pods."""
    selector = {Label.DEPLOYMENT.value: owner.name, Label.GROUP_INDEX.value: str(group)}
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": metadata(owner, budget_name(owner, group), BUDGET, {Label.GROUP_INDEX.value: str(group)}),
        "spec": {
            "minAvailable": stages,
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": {"matchLabels": selector},
        },
    }


def is_budget_of(owner: Owner, budget: Mapping[str, Any]) -> bool:
    """Whether this is a budget that the operator made for a group of a deployment of this name."""
    labels = budget["metadata"].get("labels") or {}
    return labels.get(Label.DEPLOYMENT) == owner.name and labels.get(Label.ROLE) == BUDGET


def group_of(owner: Owner, budget: Mapping[str, Any]) -> int | None:
    """Return the group of a budget that belongs to this very deployment, not to one before it; None of a copy."""
    meta = budget["metadata"]
    index = str((meta.get("labels") or {}).get(Label.GROUP_INDEX, ""))
    owned = any(one.get("uid") == owner.uid for one in meta.get("ownerReferences") or ())
    is_ours = owned and index.isdecimal() and meta["name"] == f"{owner.name}-{index}"
    return int(index) if is_ours else None


def spared_by(owner: Owner, group: int, budget: Mapping[str, Any]) -> int:
    """Return how many pods a budget of a group spares; 0 if somebody has written it anew."""
    found = budget["spec"]
    spared = found.get("minAvailable")
    wanted = render_budget(owner, group, spared)["spec"].items() if isinstance(spared, int) else ()
    same = bool(wanted) and all(found.get(name) == value for name, value in wanted)
    return spared if same and "maxUnavailable" not in found else 0


def pod_labels(owner: Owner, group: int, template: object) -> list[dict[str, str]]:
    """Return the labels by which somebody may select the leader and the other stages of a group.

    ``template`` are those that are added; a map, if whoever wrote it knew.
    """
    own = {COMPONENT: WORKER_CONTAINER, Label.GROUP_INDEX.value: str(group)}
    added = template if isinstance(template, Mapping) else {}
    return [{**metadata(owner, "", role, own)["labels"], **added} for role in (LEADER, STAGE)]
