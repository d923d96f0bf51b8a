"""What a pod asks of its node, as the scheduler counts it."""

from collections.abc import Mapping
from typing import Any

from bireme_operator.plan.quantities import amounts, total


def requests_of(spec: Mapping[str, Any]) -> dict[str, int]:
    """Return what a pod requests: all containers together, or the largest init container where that is more."""
    running = total(_requests(container) for container in spec.get("containers") or ())
    for container in spec.get("initContainers") or ():
        running |= {name: max(amount, running.get(name, 0)) for name, amount in _requests(container).items()}
    return total([running, amounts(spec.get("overhead") or {})])


def _requests(container: Mapping[str, Any]) -> dict[str, int]:
    resources = container.get("resources") or {}
    return amounts({**(resources.get("limits") or {}), **(resources.get("requests") or {})})
