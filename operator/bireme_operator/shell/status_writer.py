"""Writes the status of one deployment when it differs, at most once a second: it is read by people and controllers."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from bireme.api.status import Status
from bireme_operator.kube.client import Kube
from bireme_operator.kube.resources import DEPLOYMENTS
from bireme_operator.plan.memory import Memory
from bireme_operator.render.owned import Owner
from bireme_operator.shell.errands import Errands
from bireme_operator.shell.notes import write_memory

_SHORTEST_S: Final = 1.0
_PER_GROUP_S: Final = 0.004
"""A long status costs the server, and all who watch it, in proportion."""
_ERRAND: Final = "status"


@dataclass
class StatusWriter:
    """Holds back what comes too soon, and writes beside the visits."""

    kube: Kube
    owner: Owner
    clock: Callable[[], float]
    errands: Errands
    _written: dict[str, Any] = field(default_factory=dict)
    _memory: Memory | None = None
    _written_at: float = float("-inf")

    async def write(self, status: Status, memory: Memory) -> None:
        """Write now, and return when it is written: something is to be done that must not be forgotten."""
        await self.errands.finish(_ERRAND)
        await self._write(_content(status), memory)

    def offer(self, status: Status, memory: Memory) -> float | None:
        """Begin to write if there is news and it is time; when it should be tried again, if at all."""
        if _ERRAND in self.errands:
            return None  # its end asks for another visit
        due = self._written_at + max(_SHORTEST_S, _PER_GROUP_S * len(status.groups))
        if self.clock() < due:
            return due
        content = _content(status)
        if content != self._written or memory != self._memory:
            self.errands.begin(_ERRAND, self._write(content, memory))
        return None

    async def _write(self, content: dict[str, Any], memory: Memory) -> None:
        await self.kube.apply_status(
            {
                "apiVersion": DEPLOYMENTS.api_version,
                "kind": DEPLOYMENTS.kind,
                # The uid makes it a conflict to write on a new object of the same name.
                "metadata": {"name": self.owner.name, "namespace": self.owner.namespace, "uid": self.owner.uid},
                "status": content | {"memory": write_memory(memory)},
            }
        )
        self._written, self._memory, self._written_at = content, memory, self.clock()


def _content(status: Status) -> dict[str, Any]:
    return status.model_dump(mode="json", by_alias=True, exclude_none=True, exclude={"memory"})
