"""The backend as the planner knows it: observe, and apply an action. Pods are processes, leaders are heard over HTTP.

Adds to a pod's identity what only this backend knows: the host path of the checkpoint, the token file, the template's
environment. Verbs (drain, leader) run beside the loop; one that failed is planned again at the next look.
"""

import asyncio
import hashlib
import hmac
import logging
import os
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

import aiohttp
import msgspec

from bireme.api import InferenceDeployment
from bireme.api.local import worker_environment
from bireme.names import Env, Port
from bireme.wire.requests import Limits
from bireme.wire.routes import Route, Routes
from bireme.wire.state import DrainRequest, LeaderRequest, ReloadRequest, UndrainRequest
from bireme_operator.local.admin import post
from bireme_operator.local.devices import own_device, visible_gpus
from bireme_operator.local.kubelet import Kubelet, Pod
from bireme_operator.local.mounts import Mounts
from bireme_operator.local.rundir import RunDir
from bireme_operator.local.watcher import Leader, Watcher
from bireme_operator.plan.actions import (
    Action,
    CreatePod,
    DeletePod,
    DrainGroup,
    ReloadGroup,
    TellLeader,
    UndrainGroup,
)
from bireme_operator.plan.desired import Desired
from bireme_operator.plan.observed import LeaderView, Observed, Phase

log = logging.getLogger(__name__)

_ROUTES_VERSION: Final = 1
_VERB_RETRY_S: Final = 0.5

_ONE_AFTER_THE_OTHER: Final = {"/undrain": "/drain"}

Verb = DrainRequest | UndrainRequest | LeaderRequest | ReloadRequest


class LocalBackend:
    """Everything between the planner and the processes. ``changed`` asks for another look."""

    def __init__(
        self,
        deployment: InferenceDeployment,
        desired: Desired,
        *,
        mounts: Mounts,
        rundir: RunDir,
        kubelet: Kubelet,
        watcher: Watcher,
        session: aiohttp.ClientSession,
        changed: Callable[[], None],
    ) -> None:
        self._deployment = deployment
        self._desired = desired
        self._mounts = mounts
        self._rundir = rundir
        self._kubelet = kubelet
        self._watcher = watcher
        self._session = session
        self._changed = changed
        self._master_key = secrets.token_bytes(32)
        self._verbs: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._sources: dict[str, str] = {}

    def observe(self) -> Observed:
        """Look at all pods and at the last word of their leaders."""
        self._watcher.follow(self._leader(pod) for pod in self._leaders())
        leaders = {group: self._in_our_words(view) for group, view in self._watcher.views.items()}
        return Observed(tuple(pod.view() for pod in self._kubelet.pods), leaders)

    def apply(self, action: Action) -> None:
        """Carry out one action, or begin to."""
        match action:
            case CreatePod():
                self._create(action)
            case DeletePod():
                log.info("pod %s is ended: %s", action.name, action.why)
                self._kubelet.delete(action.name, action.grace_s)
            case DrainGroup():
                if pod := self._kubelet.get(action.leader):
                    self._begin(pod, "/drain", DrainRequest(action.deadline_s))
            case UndrainGroup():
                if pod := self._kubelet.get(action.leader):
                    self._begin(pod, "/undrain", UndrainRequest())
            case TellLeader():
                if pod := self._kubelet.get(action.pod):
                    self._begin(pod, "/leader", LeaderRequest(action.address, action.incarnation))

            case ReloadGroup():
                if pod := self._kubelet.get(action.leader):
                    source = self._on_host(action.request.source)
                    self._begin(pod, "/reload", msgspec.structs.replace(action.request, source=source))

    def routes(self) -> Routes:
        """Return what the router must know."""
        names = (
            self._deployment.model_name,
            *self._deployment.spec.model.aliases,
            *self._deployment.spec.engine.adapters,
        )
        return Routes(_ROUTES_VERSION, names, tuple(self._route(pod) for pod in self._leaders()))

    def _create(self, made: CreatePod) -> None:
        """Make a pod. What the disk or the process table refuses is planned again at the next look."""
        try:
            self._kubelet.create(made, self._environment(made))
        except OSError as error:
            log.error("pod %s can't be made, it is tried again: %s", made.name, error)  # noqa: TRY400  no bug of ours
            asyncio.get_running_loop().call_later(_VERB_RETRY_S, self._changed)

    def _leaders(self) -> list[Pod]:
        groups = sorted({pod.made.group for pod in self._kubelet.pods})
        leaders = [self._kubelet.leader(group) for group in groups]
        return [pod for pod in leaders if pod is not None and pod.phase is not Phase.EXITED]

    def _leader(self, pod: Pod) -> Leader:
        made = pod.made
        uid = self._desired.group_uid(made.group)
        return Leader(made.name, made.group, uid, made.incarnation, pod.address, self._token(made.group))

    def _route(self, pod: Pod) -> Route:
        made = pod.made
        return Route(
            group=self._desired.group_uid(made.group),
            index=made.group,
            pod=made.name,
            incarnation=made.incarnation,
            http=f"http://{pod.address}:{int(Port.HTTP)}",
            admin=f"http://{pod.address}:{int(Port.ADMIN)}",
            token_file=str(self._rundir.token_path(made.group)),
        )

    def _environment(self, made: CreatePod) -> Mapping[str, str]:
        token_file = self._rundir.write_token(made.group, self._token(made.group))
        place = made.group * self._desired.stages + made.stage
        asked = os.environ.get(Env.DEVICE, "auto")
        return {
            **made.environment,
            **own_device(place, self._desired.tensor, asked, visible_gpus()),
            **worker_environment(self._deployment.spec.template),
            Env.MODEL_PATH: self._on_host(made.environment[Env.MODEL_PATH]),
            Env.TOKEN_FILE: str(token_file),
        }

    def _on_host(self, source: str) -> str:
        """Where a checkpoint lies on this machine; leaders speak of it so, and are understood by it."""
        path = str(self._mounts.on_host(source))
        self._sources[path] = source
        return path

    def _in_our_words(self, view: LeaderView) -> LeaderView:
        """What a leader said, with checkpoints named as the deployment names them."""
        said = view.document
        source, staged = (self._sources.get(path, path) for path in (said.source, said.reload.source))
        reload = msgspec.structs.replace(said.reload, source=staged)
        return replace(view, document=msgspec.structs.replace(said, source=source, reload=reload))

    def _token(self, group: int) -> str:
        return hmac.new(self._master_key, self._desired.group_uid(group).encode(), hashlib.sha256).hexdigest()

    def _begin(self, pod: Pod, path: str, body: Verb) -> None:
        key = (pod.made.name, _ONE_AFTER_THE_OTHER.get(path, path))
        if key not in self._verbs:
            task = asyncio.get_running_loop().create_task(self._post(pod, path, body))
            self._verbs[key] = task
            task.add_done_callback(lambda _: self._verbs.pop(key, None))

    async def _post(self, pod: Pod, path: str, body: Verb) -> None:
        start = pod.started_at
        done = await post(self._session, pod.address, path, body, self._token(pod.made.group))
        if done and isinstance(body, LeaderRequest) and pod.started_at == start:
            pod.told_leader = body.incarnation
        asyncio.get_running_loop().call_later(0.0 if done else _VERB_RETRY_S, self._changed)


def describe_pods(kubelet: Kubelet, leaders: Mapping[int, LeaderView]) -> list[dict[str, Any]]:
    """Return who is who, for status.json. Ranks are there while the pod runs and its leader tells of them."""
    return [
        {
            "name": pod.made.name,
            "group": pod.made.group,
            "stage": pod.made.stage,
            "incarnation": pod.made.incarnation,
            "phase": "Deleting" if pod.deleting.is_set() else pod.phase.value,
            "pid": pod.pid,
            "ranks": _ranks(pod, leaders.get(pod.made.group)),
            "address": pod.address,
            "restarts": pod.restarts,
            "exitCode": pod.exit_code,
            "message": pod.message,
            "log": str(pod.log),
        }
        for pod in kubelet.pods
    ]


def describe_limits(leaders: Iterable[LeaderView]) -> dict[str, str | int]:
    """Return the longest context that every group takes, and why it is no longer, for status.json."""
    known = [view.document.limits for view in leaders if view.connected and view.document.limits.context]
    least = min(known, key=lambda limits: limits.context, default=Limits(0, 0, 0))
    return {"context": least.context, "message": least.shortage}


def _ranks(pod: Pod, view: LeaderView | None) -> list[dict[str, str | int]]:
    if view is None or not view.connected or pod.child is None or pod.deleting.is_set():
        return []
    same = (stage for stage in view.document.stages if stage.stage == pod.made.stage)
    ranks = [rank for stage in same if stage.incarnation == pod.made.incarnation for rank in stage.ranks]
    return [{"rank": rank.rank, "pid": rank.pid, "phase": rank.phase} for rank in ranks]
