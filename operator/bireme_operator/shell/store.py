"""What the operator has seen: deployments as objects, stage pods as records, by namespace and name of the deployment.

Three sources write here: watch events, live lists, and the answers to our own writes. Versions decide which is newer:
a late event never undoes what is known, and a pod that we made is there before its event comes. That is what others
call expectations, by uid: no pod is made twice and no end is overlooked because a cache is behind.
"""

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from bireme_operator.plan.observed import Leave, Phase, PodView
from bireme_operator.shell.isolation import Isolation
from bireme_operator.shell.leaving import STAY, Signs, signs_of
from bireme_operator.shell.records import PodRecord, record_of
from bireme_operator.shell.signals import Watched
from bireme_operator.shell.silence import Silence

Key = tuple[str, str]

_REMEMBERED_GONE: Final = 4096
_SETTLES_S: Final = 2.0
"""Who marks a pod for its end deletes it at once; only a mark that stays asks for anything."""


class Store:
    """See the module. ``clock`` tells Unix seconds, ``watched`` which signals of nodes are read.

    ``silence`` knows whose kubelets are not heard, ``isolation`` which stages are not, from the same time on.
    """

    def __init__(
        self, clock: Callable[[], float], watched: Watched | None = None, silence: Silence | None = None
    ) -> None:
        self._clock = clock
        self._watched = watched or Watched()
        self._silence = silence or Silence(clock)
        self.isolation = Isolation(clock, self._silence.after_s)
        self._deployments: dict[Key, Mapping[str, Any]] = {}
        self._pods: dict[Key, dict[str, PodRecord]] = {}
        self._named: dict[tuple[Key, str], str] = {}
        self._views: dict[str, PodView] = {}
        self._seen: dict[Key, tuple[str, tuple[PodView, ...]]] = {}
        self._gone: dict[str, float] = {}
        self._started: dict[str, dict[int, float]] = {}
        self._told: dict[str, dict[int, int]] = {}
        self._signs: dict[str, Signs] = {}
        self._signed_at: dict[str, float] = {}
        self._labels: dict[str, Mapping[str, str]] = {}

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
                self.isolation.forget(key)
            return True
        if before is not None and _older(body, before):
            return False
        # What we have said ourselves is the larger part by far, and of no use here.
        self._deployments[key] = {name: value for name, value in body.items() if name != "status"}
        return before is None or _wish(before) != _wish(body)

    def see_pod(self, pod: Mapping[str, Any], *, gone: bool = False) -> Key | None:
        """Take a pod; the key of its deployment if a plan could see a difference."""
        record = record_of(pod)
        if record is None or self._is_late(record):
            return None
        if gone:
            self._forget(record, record.version)
            return record.key
        before = self._pods.get(record.key, {}).get(record.uid)
        if before is not None and before.version >= record.version:
            return None
        self._keep(record)
        same = before is not None and before.view == record.view and before.owner_uid == record.owner_uid
        return None if same else record.key

    def see_node(self, node: Mapping[str, Any], *, gone: bool = False) -> list[Key]:
        """Take a node; the keys of the deployments that it concerns if it asks other pods to leave than before."""
        name, signs = node["metadata"]["name"], STAY if gone else signs_of(node, self._watched)
        self._labels[name] = {} if gone else node["metadata"].get("labels") or {}
        heard_anew, signed_anew = self._silence.see(node, gone=gone), signs != self._signs.get(name, STAY)
        if signed_anew:
            self._sign(name, signs)
        if not heard_anew and not signed_anew:
            return []
        return [key for key, pods in self._pods.items() if any(_concerned(pod, name) for pod in pods.values())]

    def _sign(self, name: str, signs: Signs) -> None:
        if name not in self._signs or signs.urgent != self._signs[name].urgent:
            self._signed_at[name] = self._clock()
        self._signs[name] = signs
        if signs == STAY:
            del self._signs[name], self._signed_at[name]

    def leaving(self, key: Key, owner_uid: str) -> dict[str, Leave]:
        """Return which pods are asked to leave, by name: by their nodes or by what they say themselves."""
        asked = (record for record in self.pods(key, owner_uid) if self._perhaps_asked(record))
        found = ((record.view.name, self._leave(record)) for record in asked)
        return {name: leave for name, leave in found if leave is not None}

    def leave_due(self, key: Key, owner_uid: str) -> float | None:
        """Return when a pod is asked to leave next because it or its node is silent for so long, if one is."""
        dues = self._silence.dues(record.view.node for record in self.pods(key, owner_uid))
        return min(itertools.chain(dues, self.isolation.dues(key)), default=None)

    @property
    def labels(self) -> Mapping[str, Mapping[str, str]]:
        """The labels of the nodes, by name."""
        return self._labels

    def stranded(self, key: Key, owner_uid: str) -> frozenset[str]:
        """Return the names of the pods without a node that were kept off one which is open again."""
        waiting = [record for record in self.pods(key, owner_uid) if record.avoids and not record.view.node]
        shut = {*self._signs, *self._silence.nodes, *self.isolation.shunned(key)}
        return frozenset(record.view.name for record in waiting if record.avoids - shut)

    def lures(self, key: Key, tolerations: Sequence[Mapping[str, Any]]) -> frozenset[str]:
        """Return the nodes to which the scheduler would send such a pod, only to have it asked to leave."""
        signed = frozenset(name for name, signs in self._signs.items() if signs.lure(tolerations))
        return signed | self._silence.lures(tolerations) | self.isolation.shunned(key)

    def _perhaps_asked(self, record: PodRecord) -> bool:
        """Whether there is anything to judge: most pods are on a node that says nothing, and say nothing themselves."""
        node = record.view.node
        told = node in self._signs or node in self._silence.nodes or self.isolation.misses(record.key)
        return told or record.signal is not None or record.uid in self._signed_at

    def _leave(self, record: PodRecord) -> Leave | None:
        signs, now = self._signs.get(record.view.node, STAY), self._clock()
        if record.signal is not None:
            since = self._signed_at.setdefault(record.uid, now)
            if not record.signal.notice_s or now - since >= _SETTLES_S:
                return Leave.of(record.signal.what, since, record.signal.notice_s)
        else:
            self._signed_at.pop(record.uid, None)
        if not signs.concern(record.tolerations):
            return self._silence.leave(record.view.node) or self.isolation.leave(record.key, record.view)
        return Leave.of(signs.urgent.what, self._signed_at[record.view.node], signs.urgent.notice_s)

    def replace_pods(
        self,
        key: Key,
        pods: Iterable[Mapping[str, Any]],
        version: float = float("inf"),
        groups: Collection[int] | None = None,
    ) -> None:
        """Take a live list of all pods of a deployment, or of some of its groups: what is not in it is gone.

        ``version`` is the list's: what is known from later stays as it is.
        """
        known = self._pods.get(key, {})
        present = {record.uid: record for record in map(record_of, pods) if record is not None}
        for record in list(known.values()):
            listed = groups is None or record.view.group in groups
            if listed and record.uid not in present and record.version <= version:
                self._forget(record, version)
        for uid, record in present.items():
            if not self._is_late(record) and (uid not in known or known[uid].version < record.version):
                self._keep(record)

    def pods(self, key: Key, owner_uid: str) -> list[PodRecord]:
        """Return the pods of this very deployment, not those of one that had its name before."""
        return [record for record in self._pods.get(key, {}).values() if record.owner_uid == owner_uid]

    def everything(self) -> Iterator[PodRecord]:
        """Return the stage pods of all deployments, and those that are nobody's."""
        return itertools.chain.from_iterable(pods.values() for pods in self._pods.values())

    def is_gone(self, uid: str) -> bool:
        """Whether a pod was there and is not any more."""
        return uid in self._gone

    def pod(self, key: Key, owner_uid: str, name: str) -> PodRecord | None:
        """Return the pod of this name."""
        record = self._pods.get(key, {}).get(self._named.get((key, name), ""))
        return record if record is not None and record.owner_uid == owner_uid else None

    def views(self, key: Key, owner_uid: str) -> tuple[PodView, ...]:
        """Return the pods as the planner looks at them."""
        known = self._seen.get(key)
        if known is None or known[0] != owner_uid:
            known = self._seen[key] = owner_uid, tuple(map(self._view, self.pods(key, owner_uid)))
        return known[1]

    def told(self, record: PodRecord, incarnation: int) -> None:
        """Note that this run of the pod knows the leader's incarnation."""
        uid, run = record.start
        self._told.setdefault(uid, {})[run] = incarnation
        self._views.pop(uid, None)
        self._seen.pop(record.key, None)

    def _view(self, record: PodRecord) -> PodView:
        view = self._views.get(record.uid)
        if view is None:
            uid, run = record.start
            started, told = self._started.get(uid, {}).get(run, 0.0), self._told.get(uid, {}).get(run, 0)
            view = self._views[uid] = replace(record.view, started_at=started, told_leader=told)
        return view

    def _keep(self, record: PodRecord) -> None:
        self._pods.setdefault(record.key, {})[record.uid] = record
        self._named[record.key, record.view.name] = record.uid
        self._views.pop(record.uid, None)
        self._seen.pop(record.key, None)
        if record.view.phase is Phase.RUNNING or record.bound:
            # By our own clock: those of the nodes may differ, and documents are dated by ours.
            uid, run = record.start
            self._started.setdefault(uid, {}).setdefault(run, self._clock())

    def _is_late(self, record: PodRecord) -> bool:
        """Whether it tells of what is gone since. One that is seen later had lost its labels, and has them again."""
        return record.version <= self._gone.get(record.uid, -1)

    def _forget(self, record: PodRecord, version: float) -> None:
        self._pods.get(record.key, {}).pop(record.uid, None)
        self._seen.pop(record.key, None)
        named = record.key, record.view.name
        if self._named.get(named) == record.uid:
            del self._named[named]
        for notes in (self._started, self._told, self._views, self._signed_at):
            notes.pop(record.uid, None)
        self._gone[record.uid] = version
        if len(self._gone) > _REMEMBERED_GONE:
            del self._gone[next(iter(self._gone))]


def _concerned(record: PodRecord, node: str) -> bool:
    """Whether a pod runs there, or waits and could have been kept off."""
    return record.view.node == node or node in record.avoids


def _older(body: Mapping[str, Any], known: Mapping[str, Any]) -> bool:
    same = body["metadata"]["uid"] == known["metadata"]["uid"]
    return same and int(body["metadata"]["resourceVersion"]) <= int(known["metadata"]["resourceVersion"])


def _wish(body: Mapping[str, Any]) -> tuple[Any, ...]:
    meta = body["metadata"]
    return meta["uid"], meta.get("generation"), meta.get("annotations"), meta.get("deletionTimestamp")
