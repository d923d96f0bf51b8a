"""A status as it is written. Of most groups the same is said as the last time, by the same object: those stay as they
were written down then, because a status of a thousand groups takes longer to write down than to plan.
"""

from typing import Any

from pydantic import BaseModel

from bireme.api.status import GroupStatus, Status


class StatusContent:
    """The groups of one deployment as they were written down last."""

    def __init__(self) -> None:
        self._groups: dict[int, tuple[GroupStatus, dict[str, Any]]] = {}

    def of(self, status: Status) -> dict[str, Any]:
        """Return everything but the memory."""
        groups = {}
        for group in status.groups:
            known = self._groups.get(group.index)
            groups[group.index] = known if known is not None and known[0] is group else (group, _written(group, set()))
        self._groups = groups
        return _written(status, {"memory", "groups"}) | {"groups": [written for _, written in groups.values()]}


def _written(model: BaseModel, without: set[str]) -> dict[str, Any]:
    return model.model_dump(mode="json", by_alias=True, exclude_none=True, exclude=without)
