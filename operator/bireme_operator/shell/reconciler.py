"""From a key of the queue to a visit of its case: opened at the first visit, closed when the object is gone."""

import logging

from bireme_operator.kube.errors import NotFound
from bireme_operator.kube.resources import DEPLOYMENTS
from bireme_operator.queue import WorkQueue
from bireme_operator.render.owned import Owner
from bireme_operator.shell.case import Case, Tools
from bireme_operator.shell.notes import read_memory
from bireme_operator.shell.status_writer import Found, Overtaken
from bireme_operator.shell.store import Key

log = logging.getLogger(__name__)


class Reconciler:
    """All cases. A key is never visited by two workers at once: the queue sees to that."""

    def __init__(self, tools: Tools, queue: WorkQueue[Key]) -> None:
        self._tools = tools
        self._queue = queue
        self._cases: dict[Key, Case] = {}

    async def visit(self, key: Key) -> float | None:
        """Visit one deployment; when the next visit is due at the latest.

        Raises:
            KubeError: the server could not be asked or would not answer; nothing is known, so nothing was done.
        """
        body = self._tools.store.deployment(key)
        case = self._cases.get(key)
        if case is not None and (body is None or body["metadata"]["uid"] != case.owner.uid):
            await self._cases.pop(key).close()
            case = None
        if body is None or body["metadata"].get("deletionTimestamp"):
            return None  # owner references end its objects
        if case is None:
            case = await self._open(key)
        try:
            return None if case is None else await case.visit(body)
        except Overtaken:
            await self._cases.pop(key).close()
            raise

    async def close(self) -> None:
        """Close all cases."""
        while self._cases:
            await self._cases.popitem()[1].close()

    async def _open(self, key: Key) -> Case | None:
        """Begin with what was remembered, read live: an event may be older than the last status of another operator."""
        namespace, name = key
        try:
            body = await self._tools.kube.get(DEPLOYMENTS, namespace, name)
        except NotFound:
            return None
        self._tools.store.see_deployment(body)
        owner = Owner(name, namespace, body["metadata"]["uid"])
        found = Found.of(body)
        case = Case(self._tools, owner, read_memory(found.memory), lambda: self._queue.add(key), found)
        self._cases[key] = case
        return case
