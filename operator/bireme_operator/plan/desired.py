"""What is wanted, in the planner's words: so many groups of so many stages, each pod with this environment."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final, Self

from bireme.api import InferenceDeployment
from bireme.api.deployment import Spec
from bireme.api.recovery import RecoveryMode
from bireme.api.rollout import Canary, OnFailure
from bireme.names import Annotation, Env
from bireme_operator.plan.places import Topology
from bireme_operator.plan.providers import Gang, gang_of, topology_of
from bireme_operator.plan.rendering import Rendering

HPA_MANAGER: Final = "kube-controller-manager"
"""Whose name stands in `metadata.managedFields` when a HorizontalPodAutoscaler has scaled an object."""


@dataclass(frozen=True)
class RecoveryPolicy:
    """`spec.recovery`: ``budget`` deaths within ``window_s``; waits double from ``initial_s`` to ``longest_s``.

    ``whole`` is mode Recreate: whatever is lost, all stages of the group are made anew.
    """

    budget: int
    window_s: float
    initial_s: float
    longest_s: float
    whole: bool = False


@dataclass(frozen=True)
class CanaryPolicy:
    """`spec.rollout.canary`: ``groups`` go first, and what must be so after ``analysis_s`` for the rest to follow.

    No more than ``failed_share`` of at least ``requests`` requests may fail, and nothing be slower than before by more
    than ``slowdown``; both are shares, 0.01 is one percent.
    """

    groups: int = 1
    analysis_s: float = 600.0
    requests: int = 100
    failed_share: float = 0.01
    slowdown: float = 0.2


@dataclass(frozen=True)
class RolloutPolicy:
    """`spec.rollout`: how many groups more and fewer than wanted there may be, and how many stay as they are.

    After ``deadline_s`` without progress a rollout has failed; ``roll_back`` says what follows. While a ``canary`` is
    judged, ``trial`` groups are to be new (see plan/canary.py).
    """

    surge: int = 0
    unavailable: int = 1
    partition: int = 0
    deadline_s: float = 1800.0
    roll_back: bool = True
    canary: CanaryPolicy | None = None
    trial: int = 0


@dataclass(frozen=True)
class ScalingPolicy:
    """`spec.autoscaling`: from ``fewest`` to ``most`` groups, each of which takes ``slots`` requests at a time.

    ``queued`` requests may wait for each, and a first token take ``first_token_s``; None where that is not looked at.
    A lower need counts after ``calm_s``, and no need at all after ``idle_s`` without a request.
    """

    fewest: int
    most: int
    slots: int
    queued: int | None = None
    first_token_s: float | None = None
    calm_s: float = 300.0
    idle_s: float | None = None


@dataclass(frozen=True)
class Desired:
    """One deployment. ``environment`` is the part that all its stage pods share.

    ``reload_mode`` says what becomes of running requests when only the checkpoint changes. ``stopping`` asks for the
    end of everything, gently: all groups are drained and nothing is made anew. ``restart`` is the value of the restart
    annotation: groups made under another are made anew. ``resume`` is that of the resume annotation: what failed under
    another is tried again. ``history`` has the renderings of groups still to be changed.
    ``image`` is what the backend has for workers whose template names none, ``images`` what it had when a revision was
    made. ``no_gangs`` has why the native scheduler that is asked for can't be relied on (see plan/providers.py).
    ``unavailable_groups`` is `spec.disruption.maxUnavailableGroups`. ``replicas_owner`` is another autoscaler
    that writes `spec.replicas`, where there are two.
    """

    name: str
    uid: str
    generation: int
    replicas: int
    stages: int
    tensor: int
    revision: str
    model_revision: str
    environment: Mapping[str, str]
    recovery: RecoveryPolicy
    drain_timeout_s: float
    paused: bool = False
    stopping: bool = False
    reload_mode: str = "finish"
    restart: str = ""
    resume: str = ""
    rollout: RolloutPolicy = field(default_factory=RolloutPolicy)
    history: Mapping[str, Rendering] = field(default_factory=dict)
    image: str = ""
    images: Mapping[str, str] = field(default_factory=dict)
    custom: bool = False
    unavailable_groups: int = 1
    spares: int = 0
    gang: Gang = Gang.NONE
    topology: Topology = field(default_factory=Topology)
    autoscaling: ScalingPolicy | None = None
    replicas_owner: str = ""
    no_gangs: str = ""

    @classmethod
    def of(cls, deployment: InferenceDeployment, uid: str) -> Self:
        """Translate ``deployment``; ``uid`` is the object's identity."""
        spec, meta = deployment.spec, deployment.metadata
        made = Rendering.of(spec, deployment.model_name)
        limits, rollout, gang = spec.recovery, spec.rollout, gang_of(spec.placement)
        return cls(
            name=meta.name,
            uid=uid,
            generation=meta.generation,
            replicas=spec.replicas,
            stages=made.stages,
            tensor=made.tensor,
            revision=made.revision,
            model_revision=made.model_revision,
            environment=made.environment,
            custom=made.custom,
            recovery=RecoveryPolicy(
                limits.restart_budget.limit,
                limits.restart_budget.window_seconds,
                limits.backoff.initial_seconds,
                limits.backoff.max_seconds,
                # A pod that comes later is no member of a gang that was placed before.
                whole=limits.mode is RecoveryMode.RECREATE or made.custom or gang in {Gang.NATIVE, Gang.KUEUE},
            ),
            rollout=RolloutPolicy(
                rollout.max_surge,
                rollout.max_unavailable,
                rollout.partition,
                rollout.progress_deadline_seconds,
                roll_back=rollout.on_failure is OnFailure.ROLLBACK,
                canary=_canary(rollout.canary),
            ),
            drain_timeout_s=rollout.drain_timeout_seconds,
            paused=spec.paused,
            restart=meta.annotations.get(Annotation.RESTART, ""),
            resume=meta.annotations.get(Annotation.RESUME, ""),
            reload_mode=_reload_mode(meta.annotations.get(Annotation.RELOAD_MODE, "")),
            unavailable_groups=spec.disruption.max_unavailable_groups,
            spares=spec.spares,
            gang=gang,
            topology=topology_of(spec.placement),
            autoscaling=_scaling(spec),
            replicas_owner=_owner_of_replicas(meta.managed_fields) if spec.autoscaling else "",
        )

    def without_gangs(self, why: str) -> Self:
        """Return the same where the native scheduler can't be relied on: groups are made anew whole all the same."""
        return replace(self, no_gangs=why, recovery=replace(self.recovery, whole=True))

    @cached_property
    def source(self) -> str:
        """Where the checkpoint lies, as a stage sees it."""
        return self.rendering.source

    @cached_property
    def made_of(self) -> tuple[str, ...]:
        """All that decides whether a group is what is wanted."""
        return self.revision, self.restart, self.model_revision, self.source

    @cached_property
    def rendering(self) -> Rendering:
        """What new pods are made of."""
        return Rendering(
            self.revision, self.stages, self.tensor, self.model_revision, self.environment, custom=self.custom
        )

    def with_rendering(self, made: Rendering) -> Self:
        """Return the same wish for pods of another rendering."""
        return replace(
            self,
            revision=made.revision,
            stages=made.stages,
            tensor=made.tensor,
            model_revision=made.model_revision,
            environment=made.environment,
            custom=made.custom,
        )

    def as_made(self, revision: str, model_revision: str) -> Self:
        """Return what is wanted of a group of another revision; its newest known rendering where the model is unknown.

        A revision that nobody remembers is taken for the present one: its group is made as is wanted now.
        """
        known = [made for made in self.history.values() if made.revision == revision]
        exact = [made for made in known if made.model_revision == model_revision]
        return self.with_rendering((exact or known)[-1]) if known else self

    def image_of(self, revision: str) -> str:
        """Return the image of workers of a revision whose template names none."""
        return self.images.get(revision, self.image)

    def stopped(self) -> Self:
        """Return the wish to end everything."""
        return replace(self, replicas=0, stopping=True, paused=False)

    def group_uid(self, group: int) -> str:
        """Return the identity that every handshake inside the group proves."""
        return f"{self.uid}-{group}"

    def pod_name(self, group: int, stage: int, incarnation: int) -> str:
        """Return a name that no other making of any pod has."""
        identity = f"{self.uid}/{group}/{stage}/{incarnation}"
        return f"{self.name}-{group}-{stage}-{hashlib.sha256(identity.encode()).hexdigest()[:8]}"

    def pod_environment(self, group: int, stage: int, incarnation: int) -> dict[str, str]:
        """Return the starting identity of one stage pod, without what only its backend knows.

        The backend adds POD_IP, LEADER_ADDRESS, TOKEN_FILE and STATE_DIR.
        """
        return {
            **self.environment,
            Env.GROUP_UID: self.group_uid(group),
            Env.GROUP_INDEX: str(group),
            Env.STAGE: str(stage),
            Env.INCARNATION: str(incarnation),
        }


def _canary(canary: Canary | None) -> CanaryPolicy | None:
    if canary is None:
        return None
    return CanaryPolicy(
        canary.groups,
        canary.analysis_seconds,
        canary.min_requests,
        canary.max_error_percent / 100,
        canary.max_slowdown_percent / 100,
    )


def _scaling(spec: Spec) -> ScalingPolicy | None:
    wanted = spec.autoscaling
    if wanted is None:
        return None
    first_token_ms = wanted.target_ttft_milliseconds
    return ScalingPolicy(
        wanted.min_replicas,
        wanted.max_replicas,
        spec.engine.max_running_requests,
        wanted.target_queued_requests,
        None if first_token_ms is None else first_token_ms / 1000,
        wanted.stabilization_seconds,
        wanted.idle_to_zero_seconds,
    )


def _owner_of_replicas(managed: Sequence[Mapping[str, Any]]) -> str:
    """Return the field manager of a HorizontalPodAutoscaler that has set `spec.replicas`, if there is one."""
    owners = (entry for entry in managed if "f:replicas" in ((entry.get("fieldsV1") or {}).get("f:spec") or {}))
    return next((str(entry["manager"]) for entry in owners if entry.get("manager") == HPA_MANAGER), "")


def _reload_mode(written: str) -> str:
    """Return the mode of the annotation; whatever else stands there lets running requests finish."""
    return written if written == "restart" else "finish"
