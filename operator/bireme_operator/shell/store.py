"""What the operator has seen: deployments as objects, stage pods as records, by namespace and name of the deployment.

Three sources write here: watch events, live lists, and the answers to our own writes. Versions decide which is newer:
a late event never undoes what is known, and a pod that we made is there before its event comes. That is what others
call expectations, by uid: no pod is made twice and no end is overlooked because a cache is behind.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from bireme_operator.plan.observed import Phase, PodView
from bireme_operator.shell.records import PodRecord, record_of

Key = tuple[str, str]

_REMEMBERED_GONE: Final = 4096


class Store:
    """See the module. ``clock`` tells Unix seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._deployments: dict[Key, Mapping[str, Any]] = {}
        self._pods: dict[Key, dict[str, PodRecord]] = {}
        self._gone: dict[str, None] = {}
        self._started: dict[tuple[str, int], float] = {}
        self._told: dict[tuple[str, int], int] = {}
        self._leaving_nodes: set[str] = set()

    def deployment(self, key: Key) -> Mapping[str, Any] | None:
        """Return the object as last seen."""
        return self._deployments.get(key)

    def see_deployment(self, body: Mapping[str, Any], *, gone: bool = False) -> bool:
        """Take a deployment; whether anything changed that a plan depends on."""
        key = body["metadata"]["namespace"], body["metadata"]["name"]
        before = self._deployments.get(key)
        if gone:
            if before is not None and before["metadata"]["uid"] == body["metadata"]["uid"]:
                del self._deployments[key]
            return True
        if before is not None and _older(body, before):
            return False
        self._deployments[key] = body
        return before is None or _wish(before) != _wish(body)

    def see_pod(self, pod: Mapping[str, Any], *, gone: bool = False) -> Key | None:
        """Take a pod; the key of its deployment if a plan could see a difference."""
        record = record_of(pod)
        if record is None or record.uid in self._gone:
            return None
        if gone:
            self._forget(record)
            return record.key
        pods = self._pods.setdefault(record.key, {})
        before = pods.get(record.uid)
        if before is not None and before.version >= record.version:
            return None
        pods[record.uid] = record
        self._note_start(record)
        return None if before is not None and before.view == record.view else record.key

    def see_node(self, node: Mapping[str, Any], *, gone: bool = False) -> list[Key]:
        """Take a node; the keys of the deployments on it if it began or ceased to be emptied."""
        name = node["metadata"]["name"]
        leaving = not gone and bool((node.get("spec") or {}).get("unschedulable"))
        if leaving == (name in self._leaving_nodes):
            return []
        (self._leaving_nodes.add if leaving else self._leaving_nodes.discard)(name)
        return [key for key, pods in self._pods.items() if any(pod.view.node == name for pod in pods.values())]

    @property
    def leaving_nodes(self) -> frozenset[str]:
        """The nodes that are cordoned."""
        return frozenset(self._leaving_nodes)

    def replace_pods(self, key: Key, pods: Iterable[Mapping[str, Any]]) -> None:
        """Take a live list of all pods of a deployment: what is not in it is gone."""
        present = [record for record in map(record_of, pods) if record is not None]
        uids = {record.uid for record in present}
        for record in list(self._pods.get(key, {}).values()):
            if record.uid not in uids:
                self._forget(record)
        for record in present:
            if record.uid not in self._gone:
                self._pods.setdefault(key, {})[record.uid] = record
                self._note_start(record)

    def pods(self, key: Key, owner_uid: str) -> list[PodRecord]:
        """Return the pods of this very deployment, not those of one that had its name before."""
        return [record for record in self._pods.get(key, {}).values() if record.owner_uid == owner_uid]

    def views(self, key: Key, owner_uid: str) -> tuple[PodView, ...]:
        """Return the pods as the planner looks at them."""
        return tuple(
            replace(
                record.view,
                started_at=self._started.get(record.start, 0.0),
                told_leader=self._told.get(record.start, 0),
            )
            for record in self.pods(key, owner_uid)
        )

    def told(self, record: PodRecord, incarnation: int) -> None:
        """Note that this run of the pod knows the leader's incarnation."""
        self._told[record.start] = incarnation

    def _note_start(self, record: PodRecord) -> None:
        """Starts are noted by our own clock: those of the nodes may differ, and documents are dated by ours."""
        if record.view.phase is Phase.RUNNING or record.bound:
            self._started.setdefault(record.start, self._clock())

    def _forget(self, record: PodRecord) -> None:
        self._pods.get(record.key, {}).pop(record.uid, None)
        for notes in (self._started, self._told):
            for start in [start for start in notes if start[0] == record.uid]:
                notes.pop(start, None)
        self._gone[record.uid] = None
        if len(self._gone) > _REMEMBERED_GONE:
            del self._gone[next(iter(self._gone))]


def _older(body: Mapping[str, Any], known: Mapping[str, Any]) -> bool:
    same = body["metadata"]["uid"] == known["metadata"]["uid"]
    return same and int(body["metadata"]["resourceVersion"]) <= int(known["metadata"]["resourceVersion"])


def _wish(body: Mapping[str, Any]) -> tuple[Any, ...]:
    meta = body["metadata"]
    return meta["uid"], meta.get("generation"), meta.get("annotations"), meta.get("deletionTimestamp")
