"""Writes the status of one deployment when it differs, at most once a second: it is read by people and controllers.

Each write names the version that it is about, so that a late one, of an operator that has lost its Lease meanwhile, is
refused. A version that somebody else has made is taken over as long as the memory in it is what was written from here.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self

from bireme.api.status import Status
from bireme_operator.kube.client import Kube, Object
from bireme_operator.kube.errors import Conflict, KubeError
from bireme_operator.kube.resources import DEPLOYMENTS
from bireme_operator.plan.memory import Memory
from bireme_operator.render.owned import Owner
from bireme_operator.shell.errands import Errands
from bireme_operator.shell.notes import write_memory
from bireme_operator.shell.status_content import StatusContent
from bireme_operator.shell.status_fields import StatusFields

_SHORTEST_S: Final = 1.0
_PER_GROUP_S: Final = 0.004
"""A long status costs the server, and all who watch it, in proportion."""
_ERRAND: Final = "status"
_TRIES: Final = 5


class Overtaken(KubeError):
    """Somebody else has written the memory of this deployment: begin anew with that."""


@dataclass(frozen=True)
class Found:
    """An object as it was read: its version, and the memory in its status."""

    version: str = ""
    memory: str = ""

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> Self:
        """Read it off the object."""
        return cls(body["metadata"]["resourceVersion"], str((body.get("status") or {}).get("memory") or ""))


@dataclass
class StatusWriter:
    """Holds back what comes too soon, and writes beside the visits. ``found`` is what it begins with."""

    kube: Kube
    owner: Owner
    clock: Callable[[], float]
    errands: Errands
    found: Found = field(default_factory=Found)
    fields: StatusFields = field(default_factory=StatusFields)
    content: StatusContent = field(default_factory=StatusContent)
    _tried: set[str] = field(default_factory=set)
    _written: dict[str, Any] = field(default_factory=dict)
    _memory: Memory | None = None
    _written_at: float = float("-inf")

    async def write(self, status: Status, memory: Memory) -> None:
        """Write now, and return when it is written: something is to be done that must not be forgotten."""
        await self.errands.finish(_ERRAND)
        await self._write(self.content.of(status), memory)

    def offer(self, status: Status, memory: Memory) -> float | None:
        """Begin to write if there is news and it is time; when it should be tried again, if at all."""
        if _ERRAND in self.errands:
            return None  # its end asks for another visit
        due = self._written_at + max(_SHORTEST_S, _PER_GROUP_S * len(status.groups))
        if self.clock() < due:
            return due
        content = self.content.of(status)
        if content != self._written or memory != self._memory:
            self.errands.begin(_ERRAND, self._write(content, memory))
        return None

    def try_all_fields(self) -> None:
        """Write what the CRD lacked once more: it may have been replaced."""
        if self.fields.lacking:
            self.fields.forget()
            self._written = {}

    async def _write(self, content: dict[str, Any], memory: Memory) -> None:
        text = write_memory(memory)
        self._tried.add(text)
        self.found = Found.of(await self._send(content, text))
        self._tried.clear()
        self._written, self._memory, self._written_at = content, memory, self.clock()

    async def _send(self, content: dict[str, Any], memory: str) -> Object:
        for left in reversed(range(_TRIES)):
            try:
                return await self._apply(self.fields.known(content) | {"memory": memory})
            except Conflict:
                if not left:
                    raise
                await self._look()
            except KubeError as error:
                if not self.fields.learn(error):
                    raise
        raise Conflict("the status changed under every try")

    async def _apply(self, status: dict[str, Any]) -> Object:
        # The uid makes it a conflict to write on a new object of the same name.
        meta = {"name": self.owner.name, "namespace": self.owner.namespace, "uid": self.owner.uid}
        meta |= {"resourceVersion": self.found.version} if self.found.version else {}
        kind = {"apiVersion": DEPLOYMENTS.api_version, "kind": DEPLOYMENTS.kind}
        return await self.kube.apply_status({**kind, "metadata": meta, "status": status})

    async def _look(self) -> None:
        """Take over the present version, if nobody else has written its memory."""
        body = await self.kube.get(DEPLOYMENTS, self.owner.namespace, self.owner.name)
        if body["metadata"]["uid"] != self.owner.uid:
            raise Conflict("another object has this name now")
        now = Found.of(body)
        # A write whose answer was lost is ours as well.
        if now.memory != self.found.memory and now.memory not in self._tried:
            raise Overtaken("another operator has written status.memory, so this one begins anew with it")
        self.found = now
