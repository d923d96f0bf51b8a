"""A disruption budget for each group that serves: the Eviction API takes all of its pods or none.

A budget that counted pods of several groups would allow the loss of one pod in each of them. It only holds an eviction
back until the group has moved, so there is none where nobody watches for cordons.
"""

from bireme.names import Label
from bireme_operator.render.owned import Object, Owner, metadata


def budget_name(owner: Owner, group: int) -> str:
    """Return the name of a group's budget."""
    return f"{owner.name}-{group}"


def render_budget(owner: Owner, group: int, stages: int) -> Object:
    """Return the budget of a group of ``stages`` pods."""
    selector = {Label.DEPLOYMENT.value: owner.name, Label.GROUP_INDEX.value: str(group)}
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": metadata(owner, budget_name(owner, group), "budget", {Label.GROUP_INDEX.value: str(group)}),
        "spec": {
            "minAvailable": stages,
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": {"matchLabels": selector},
        },
    }
