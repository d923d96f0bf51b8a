"""A pod as the operator keeps it: the few facts that a plan needs, never the body, which is ten times as large.

What the kubelet says in its own words is translated here into the planner's phases, and nowhere else.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from bireme.api.local import WORKER_CONTAINER
from bireme.names import Env, Exit, Label
from bireme_operator.plan.observed import SPARE, Phase, PodView
from bireme_operator.plan.places import HOSTNAME
from bireme_operator.plan.quantities import Amounts
from bireme_operator.render.avoid import avoided_by
from bireme_operator.render.gang import GATE
from bireme_operator.render.spares import STANDS_BY
from bireme_operator.shell.requests import requests_of
from bireme_operator.shell.signals import Signal, disruption_of, of_pod

FINAL_EXITS: Final = (Exit.DRAINED, Exit.BAD_CONFIGURATION, Exit.BAD_CHECKPOINT)
"""Ends after which the same start can't help, whatever `restartPolicy` makes the kubelet do."""
ENDED: Final = ("Failed", "Succeeded")
"""Phases of a pod that takes nothing of its node any more."""
_GATED: Final = "SchedulingGated"
_NOWHERE: Final = (SPARE, SPARE, 0)
"""Group, stage and incarnation of a pod whose labels name none."""


@dataclass(frozen=True)
class PodRecord:
    """One stage pod at one version. ``start`` is the same for as long as its process is.

    ``owner_uid`` is empty for a pod that is nobody's: orphaned, or with labels that make no sense. Nothing is done with
    it, and it takes room all the same.
    ``signal`` is what it says itself of its end, ``avoids`` are nodes that it was kept off when it was made. It
    takes ``requests`` of its node until it has ``ended``.
    """

    uid: str
    version: int
    namespace: str
    owner: str
    owner_uid: str
    view: PodView
    tolerations: tuple[Mapping[str, Any], ...] = ()
    signal: Signal | None = None
    avoids: frozenset[str] = frozenset()
    requests: Amounts = field(default_factory=dict)
    ended: bool = False

    @property
    def key(self) -> tuple[str, str]:
        """Namespace and name of the deployment."""
        return self.namespace, self.owner

    @property
    def bound(self) -> bool:
        """Whether the pod has a node and its process has not run yet."""
        return self.view.phase is Phase.PENDING and self.view.node != ""

    @property
    def start(self) -> tuple[str, int]:
        """Identity of the present run of the pod's process, or of the wait for the first."""
        return self.uid, -1 if self.view.phase is Phase.PENDING else self.view.restarts


def record_of(pod: Mapping[str, Any]) -> PodRecord | None:
    """Return the record of a pod object, or None when it has not the label of a stage."""
    meta = pod["metadata"]
    labels = meta.get("labels") or {}
    if Label.STAGE not in labels:
        return None
    place = _place(labels)
    owner = next((o for o in meta.get("ownerReferences") or () if o.get("controller")), None)
    if owner is None or place is None:
        owner, place = {"name": labels.get(Label.DEPLOYMENT, ""), "uid": ""}, place or _NOWHERE
    view = _view(pod, place)
    version = int(meta["resourceVersion"])
    tolerations = tuple((pod.get("spec") or {}).get("tolerations") or ())
    return PodRecord(
        meta["uid"],
        version,
        meta["namespace"],
        owner["name"],
        owner["uid"],
        view,
        tolerations,
        None if view.deleting else of_pod(pod),
        avoided_by(pod),
        requests_of(pod.get("spec") or {}),
        (pod.get("status") or {}).get("phase") in ENDED,
    )


def _view(pod: Mapping[str, Any], place: tuple[int, int, int]) -> PodView:
    meta, status = pod["metadata"], pod.get("status") or {}
    labels = meta.get("labels") or {}
    group, stage, incarnation = place
    phase, code, message = _process(status)
    unplaced = _unplaced(status) if phase is Phase.PENDING else None
    return PodView(
        name=meta["name"],
        group=group,
        stage=stage,
        incarnation=incarnation,
        revision=labels.get(Label.REVISION, ""),
        model_revision=labels.get(Label.MODEL_REVISION, ""),
        phase=phase,
        address=status.get("podIP") or "",
        restarts=int(_worker(status).get("restartCount") or 0) + _init_restarts(status),
        exit_code=code,
        message=message if unplaced is None else unplaced,
        deleting="deletionTimestamp" in meta,
        end_by=_unix(meta.get("deletionTimestamp")),
        node=(pod.get("spec") or {}).get("nodeName") or "",
        unplaced=unplaced is not None,
        promised=status.get("nominatedNodeName") or "",
        ready=any(one.get("type") == "Ready" and one.get("status") == "True" for one in status.get("conditions") or ()),
        gated=any(gate.get("name") == GATE for gate in (pod.get("spec") or {}).get("schedulingGates") or ()),
        aim=((pod.get("spec") or {}).get("nodeSelector") or {}).get(HOSTNAME, ""),
        source=_source(pod),
        spare=_number(labels.get(Label.SPARE)),
        disrupted=disruption_of(pod),
        image=str(_container(pod).get("image") or ""),
    )


def _unix(told: str | None) -> float:
    return datetime.fromisoformat(told).timestamp() if told else 0.0


def _place(labels: Mapping[str, str]) -> tuple[int, int, int] | None:
    """Return group, stage and incarnation; of a spare its number alone."""
    try:
        if labels[Label.STAGE] == STANDS_BY:
            return SPARE, SPARE, int(labels[Label.SPARE])
        return int(labels[Label.GROUP_INDEX]), int(labels[Label.STAGE]), int(labels[Label.INCARNATION])
    except (KeyError, ValueError):
        return None


def _number(written: str | None) -> int:
    """Return the number of a label that anybody may have written; 0 for what is none."""
    return int(written) if written is not None and written.isdecimal() else 0


def _source(pod: Mapping[str, Any]) -> str:
    """Where the checkpoint lies that the pod was made with."""
    environment = _container(pod).get("env") or ()
    return next((str(one.get("value", "")) for one in environment if one["name"] == Env.MODEL_PATH), "")


def _container(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    containers = (pod.get("spec") or {}).get("containers") or ()
    return next((one for one in containers if one.get("name") == WORKER_CONTAINER), {})


def _worker(status: Mapping[str, Any]) -> Mapping[str, Any]:
    containers = status.get("containerStatuses") or ()
    return next((one for one in containers if one.get("name") == WORKER_CONTAINER), {})


def _process(status: Mapping[str, Any]) -> tuple[Phase, int | None, str]:
    """Return the phase, the exit code of the last end, and what was said at it."""
    worker = _worker(status)
    state = worker.get("state") or {}
    last = state.get("terminated") or (worker.get("lastState") or {}).get("terminated") or {}
    code = last.get("exitCode")
    words = _last_words(last) or str(status.get("message") or status.get("reason") or "")
    if status.get("phase") in ENDED:
        # Evicted pods and pods of a node that shut down end without a word about their containers.
        return Phase.EXITED, code, words
    if "running" in state:
        return Phase.RUNNING, code, words
    if last:
        return (Phase.EXITED if code in FINAL_EXITS else Phase.BACKING_OFF), code, words
    if failed := _failed_init(status):
        return failed
    waiting = state.get("waiting") or {}
    return Phase.PENDING, None, ": ".join(filter(None, (waiting.get("reason"), waiting.get("message"))))


def _init_restarts(status: Mapping[str, Any]) -> int:
    return sum(int(one.get("restartCount") or 0) for one in status.get("initContainerStatuses") or ())


def _failed_init(status: Mapping[str, Any]) -> tuple[Phase, None, str] | None:
    """Return phase and words of a pod whose init container has failed: it waits for its next start, or runs again."""
    for one in status.get("initContainerStatuses") or ():
        state = one.get("state") or {}
        ended = state.get("terminated") or (one.get("lastState") or {}).get("terminated") or {}
        if ended.get("exitCode"):
            words = f"init container {one.get('name')}: {_last_words(ended)} (exit code {ended['exitCode']})"
            return Phase.PENDING if "running" in state else Phase.BACKING_OFF, None, words
    return None


def _last_words(terminated: Mapping[str, Any]) -> str:
    lines = [line.strip() for line in str(terminated.get("message") or "").splitlines() if line.strip()]
    told = lines[-1] if lines else str(terminated.get("reason") or "")
    return told[:500]


def _unplaced(status: Mapping[str, Any]) -> str | None:
    """Return the scheduler's words when it finds no node. What stands at a gate it was not asked about yet."""
    for condition in status.get("conditions") or ():
        if condition.get("reason") == _GATED:
            continue
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return str(condition.get("message") or condition.get("reason") or "not scheduled")
    return None
