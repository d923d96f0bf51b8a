"""Writes the status of one deployment when it differs, at most once a second: it is read by people and controllers."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from bireme.api.status import Status
from bireme_operator.kube.client import Kube
from bireme_operator.kube.resources import DEPLOYMENTS
from bireme_operator.plan.memory import Memory
from bireme_operator.render.owned import Owner
from bireme_operator.shell.notes import write_memory

_SHORTEST_S: Final = 1.0


@dataclass
class StatusWriter:
    """Holds back what comes too soon."""

    kube: Kube
    owner: Owner
    clock: Callable[[], float]
    _written: dict[str, Any] = field(default_factory=dict)
    _memory: Memory | None = None
    _written_at: float = float("-inf")

    async def write(self, status: Status, memory: Memory, *, at_once: bool = False) -> float | None:
        """Write if there is news and it is time or may not wait; when it should be tried again, if at all."""
        content = status.model_dump(mode="json", by_alias=True, exclude_none=True, exclude={"memory"})
        if content == self._written and memory == self._memory:
            return None
        now = self.clock()
        if now - self._written_at < _SHORTEST_S and not at_once:
            return self._written_at + _SHORTEST_S
        await self.kube.apply_status(
            {
                "apiVersion": DEPLOYMENTS.api_version,
                "kind": DEPLOYMENTS.kind,
                # The uid makes it a conflict to write on a new object of the same name.
                "metadata": {"name": self.owner.name, "namespace": self.owner.namespace, "uid": self.owner.uid},
                "status": content | {"memory": write_memory(memory)},
            }
        )
        self._written, self._memory, self._written_at = content, memory, now
        return None
