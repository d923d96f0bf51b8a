"""What is wanted, in the planner's words: so many groups of so many stages, each pod with this environment."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, Self

from bireme.api import InferenceDeployment
from bireme.api.deployment import Spec
from bireme.api.engine import Switch
from bireme.names import Env
from bireme_operator.plan.revision import pod_revision

CLAIM_MOUNT: Final = "/bireme/model"
"""Where a PersistentVolumeClaim with the checkpoint is mounted in a stage pod."""


@dataclass(frozen=True)
class RecoveryPolicy:
    """`spec.recovery`: ``budget`` deaths within ``window_s``; waits double from ``initial_s`` to ``longest_s``."""

    budget: int
    window_s: float
    initial_s: float
    longest_s: float


@dataclass(frozen=True)
class Desired:
    """One deployment. ``environment`` is the part that all its stage pods share.

    ``reload_mode`` says what becomes of running requests when only the checkpoint changes. ``stopping`` asks for the
    end of everything, gently: all groups are drained and nothing is made anew.
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

    @classmethod
    def of(cls, deployment: InferenceDeployment, uid: str) -> Self:
        """Translate ``deployment``; ``uid`` is the object's identity."""
        spec, meta = deployment.spec, deployment.metadata
        revision = pod_revision(spec, deployment.model_name)
        limits = spec.recovery
        return cls(
            name=meta.name,
            uid=uid,
            generation=meta.generation,
            replicas=spec.replicas,
            stages=spec.parallelism.pipeline,
            tensor=spec.parallelism.tensor,
            revision=revision,
            model_revision=spec.model.revision,
            environment=_shared_environment(spec, deployment.model_name, revision),
            recovery=RecoveryPolicy(
                limits.restart_budget.limit,
                limits.restart_budget.window_seconds,
                limits.backoff.initial_seconds,
                limits.backoff.max_seconds,
            ),
            drain_timeout_s=spec.rollout.drain_timeout_seconds,
            paused=spec.paused,
        )

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


def _shared_environment(spec: Spec, model_name: str, revision: str) -> dict[str, str]:
    engine, parallelism, model = spec.engine, spec.parallelism, spec.model
    return {
        Env.STAGES: str(parallelism.pipeline),
        Env.TENSOR: str(parallelism.tensor),
        Env.STAGE_LAYERS: ",".join(str(layers) for layers in parallelism.stage_layers or ()),
        Env.REVISION: revision,
        Env.MODEL_NAME: model_name,
        Env.MODEL_ALIASES: ",".join(model.aliases),
        Env.MODEL_PATH: model_path(spec),
        Env.MODEL_REVISION: model.revision,
        Env.MODEL_DTYPE: model.dtype.value,
        Env.MAX_MODEL_LENGTH: str(engine.max_model_length or 0),
        Env.MAX_RUNNING_REQUESTS: str(engine.max_running_requests),
        Env.MAX_BATCHED_TOKENS: str(engine.max_batched_tokens),
        Env.KV_BYTES: str(engine.kv_cache.byte_count() or 0),
        Env.PREFIX_CACHING: "1" if engine.prefix_caching is Switch.ENABLED else "0",
        Env.DRAIN_TIMEOUT: str(spec.rollout.drain_timeout_seconds),
    }


def model_path(spec: Spec) -> str:
    """Return where the checkpoint lies as the stage sees it."""
    source = spec.model.source
    if source.path is not None:
        return source.path
    assert source.persistent_volume_claim is not None, "the API refuses the other sources"
    inside = source.persistent_volume_claim.path
    return CLAIM_MOUNT if inside == "." else f"{CLAIM_MOUNT}/{inside}"
