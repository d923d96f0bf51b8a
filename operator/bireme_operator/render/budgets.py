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
    """Whether this is a budget that the operator made for a group of this deployment."""
    labels = budget["metadata"].get("labels") or {}
    return labels.get(Label.DEPLOYMENT) == owner.name and labels.get(Label.ROLE) == BUDGET


def pod_labels(owner: Owner, group: int, template: Mapping[str, str]) -> list[dict[str, str]]:
    """Return the labels by which somebody may select the leader and the other stages of a group."""
    own = {COMPONENT: WORKER_CONTAINER, Label.GROUP_INDEX.value: str(group)}
    return [{**metadata(owner, "", role, own)["labels"], **template} for role in (LEADER, STAGE)]
