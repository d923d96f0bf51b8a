"""InferenceDeployment: one model, served by a number of equal groups behind one router.

No field is immutable: whatever changes, the groups are rolled, reloaded or left alone as the field's description says.
"""

import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from bireme.api.base import ApiModel, Rule
from bireme.api.engine import Engine, EngineType
from bireme.api.local import unsupported_template
from bireme.api.model import Model, ModelSource
from bireme.api.parallelism import Parallelism
from bireme.api.placement import Placement, Scheduler
from bireme.api.recovery import Recovery, RecoveryMode
from bireme.api.rollout import Autoscaling, Disruption, Rollout
from bireme.api.router import Router
from bireme.api.status import Status
from bireme.api.template import PodTemplate
from bireme.api.types import DNS_LABEL, MAX_NAME_LENGTH, GroupCount


class Metadata(ApiModel):
    """The part of Kubernetes' object metadata that we read; the rest is passed through."""

    name: str
    """Name of the deployment."""
    namespace: str = "default"
    """Namespace of the deployment."""
    uid: str = ""
    """Identity given by the API server."""
    generation: int = 0
    """Counter of spec changes."""
    resource_version: str = ""
    """Version of the object in the API server."""
    labels: dict[str, str] = Field(default_factory=dict)
    """Labels."""
    annotations: dict[str, str] = Field(default_factory=dict)
    """Annotations; the verbs of the command line among them."""
    creation_timestamp: str | None = None
    """When the object was made."""
    deletion_timestamp: str | None = None
    """When its deletion was asked for."""
    deletion_grace_period_seconds: int | None = None
    """Kubernetes' own."""
    generate_name: str | None = None
    """Kubernetes' own."""
    self_link: str | None = None
    """Kubernetes' own."""
    finalizers: tuple[str, ...] = ()
    """Kubernetes' own; Bireme sets none."""
    owner_references: tuple[dict[str, Any], ...] = ()
    """Kubernetes' own."""
    managed_fields: tuple[dict[str, Any], ...] = ()
    """Kubernetes' own."""


class Spec(ApiModel):
    """What is wanted."""

    at: ClassVar[str] = "spec"
    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "!has(self.rollout) || !has(self.rollout.canary) || !has(self.engine) || self.engine.type != 'Custom'",
            lambda self: self.rollout.canary is None or self.engine.type is not EngineType.CUSTOM,
            "set engine.type to Bireme, or leave rollout.canary out: before another engine is no router to judge it",
            field="rollout",
        ),
        Rule(
            "!has(self.autoscaling) || ((!has(self.engine) || self.engine.type != 'Custom')"
            " && (!has(self.router) || self.router.replicas > 0))",
            lambda self: (
                self.autoscaling is None or (self.engine.type is not EngineType.CUSTOM and self.router.replicas > 0)
            ),
            "set engine.type to Bireme and router.replicas to 1 or more, or leave autoscaling out: it asks the router",
            field="autoscaling",
        ),
        Rule(
            "!has(self.spares) || self.spares == 0 || ((!has(self.engine) || self.engine.type != 'Custom')"
            " && (!has(self.recovery) || self.recovery.mode == 'InPlace')"
            " && (!has(self.placement) || (self.placement.scheduler in ['Auto', 'Gates']"
            " && !has(self.placement.queueName))))",
            lambda self: self.spares == 0 or self._can_have_spares(),
            "set spares to 0, or placement.scheduler to Gates, engine.type to Bireme and recovery.mode to InPlace",
            field="spares",
        ),
    )

    replicas: GroupCount = 1
    """Groups: copies of the model, each of tensor × pipeline devices. Default 1; 0 stops all. A HorizontalPodAutoscaler
    on the scale subresource may own it."""
    paused: bool = False
    """True leaves everything as it is: no group is made, changed, replaced or removed. Default false."""
    model: Model
    """Which model is served."""
    parallelism: Parallelism = Field(default_factory=Parallelism)
    """How one copy of the model is split over devices and pods."""
    engine: Engine = Field(default_factory=Engine)
    """What runs inside a group, and its limits."""
    template: PodTemplate = Field(default_factory=PodTemplate)
    """Open pod template of the stages. A change rolls the groups."""
    placement: Placement = Field(default_factory=Placement)
    """Where the stages of a group run."""
    rollout: Rollout = Field(default_factory=Rollout)
    """How a change reaches the groups."""
    recovery: Recovery = Field(default_factory=Recovery)
    """What happens when a part of a group is lost."""
    spares: Annotated[int, Field(ge=0, le=100)] = 0
    """Standby stage pods. They hold a stage's devices with the checkpoint's files in memory, and take the place of a
    stage that is lost: no scheduling, no image, no volume to wait for. With `placement.topology` each stands by in the
    domain of a group. Not with the schedulers Native and Kueue. Default 0."""
    autoscaling: Autoscaling | None = None
    """Bireme's own autoscaler, by queue and time to the first token. Default none."""
    disruption: Disruption = Field(default_factory=Disruption)
    """How much capacity node drains may take."""
    router: Router = Field(default_factory=Router)
    """The router before the groups."""

    def _can_have_spares(self) -> bool:
        ours = self.engine.type is EngineType.BIREME and self.recovery.mode is RecoveryMode.IN_PLACE
        may = {Scheduler.AUTO, Scheduler.GATES}
        return ours and self.placement.scheduler in may and self.placement.queue_name is None


def _name_fits(self: "InferenceDeployment") -> bool:
    return len(self.metadata.name) <= MAX_NAME_LENGTH


def _name_is_a_label(self: "InferenceDeployment") -> bool:
    return re.fullmatch(DNS_LABEL.strip("^$"), self.metadata.name) is not None


class InferenceDeployment(ApiModel):
    """One model, served by equal groups of pods behind an OpenAI-compatible router."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            f"size(self.metadata.name) <= {MAX_NAME_LENGTH}",
            _name_fits,
            f"shorten metadata.name to {MAX_NAME_LENGTH} characters: pods are named <name>-<group>-<stage>-<hash>",
        ),
        Rule(
            f"self.metadata.name.matches('{DNS_LABEL}')",
            _name_is_a_label,
            "write metadata.name in lower-case letters, digits and dashes, a letter first and no dash last",
        ),
    )

    api_version: Literal["bireme.dev/v1alpha1"] = "bireme.dev/v1alpha1"
    """Version of this API."""
    kind: Literal["InferenceDeployment"] = "InferenceDeployment"
    """Kind of this object."""
    metadata: Metadata
    """Name, namespace, labels and annotations."""
    spec: Spec
    """What is wanted."""
    status: Status | None = None
    """What is."""

    @property
    def name(self) -> str:
        """The deployment's name."""
        return self.metadata.name

    @property
    def model_name(self) -> str:
        """The OpenAI `model` that clients name."""
        return self.spec.model.name or self.metadata.name

    def to_dict(self) -> dict[str, Any]:
        """Return the object as YAML and JSON have it: camelCase, enums as strings, absent fields left out."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


def _about_the_source(source: ModelSource) -> list[str]:
    instead = "set source.path and give the directory by `bireme up --mount`"
    if source.persistent_volume_claim is not None:
        return [f"spec.model.source.persistentVolumeClaim: a local process has no claims; {instead}"]
    if source.image is not None:
        return [f"spec.model.source.image: a local process mounts no images; {instead}"]
    return []


def _about_nodes(spec: Spec) -> list[str]:
    given = {
        "spec.recovery.nodeLostAfterSeconds": (spec.recovery, "node_lost_after_seconds"),
        "spec.spares": (spec, "spares"),
        "spec.disruption.onCordon": (spec.disruption, "on_cordon"),
        "spec.disruption.maxUnavailableGroups": (spec.disruption, "max_unavailable_groups"),
        "spec.placement.topology": (spec.placement, "topology"),
        "spec.placement.exclusive": (spec.placement, "exclusive"),
        "spec.placement.scheduler": (spec.placement, "scheduler"),
        "spec.placement.queueName": (spec.placement, "queue_name"),
    }
    return [f"{path}: remove it; local processes have no nodes" for path in _changed(given)]


def _about_rollouts(spec: Spec) -> list[str]:
    given = {
        "spec.rollout.maxSurge": (spec.rollout, "max_surge"),
        "spec.rollout.maxUnavailable": (spec.rollout, "max_unavailable"),
        "spec.rollout.canary": (spec.rollout, "canary"),
    }
    return [f"{path}: remove it; local groups are reloaded in place, one at a time" for path in _changed(given)]


def _about_the_router(spec: Spec) -> list[str]:
    router = spec.router
    refusals = [] if router.replicas else ["spec.router.replicas: write 1 or more; `bireme up` always runs a router"]
    secrets = {
        "apiKeysSecretRef": router.api_keys_secret_ref,
        "rateLimitsSecretRef": router.rate_limits_secret_ref,
        "tls": router.tls,
    }
    for name, given in secrets.items():
        if given is not None:
            refusals.append(f"spec.router.{name}: remove it; a local run has no Secrets, and listens on loopback")
    return refusals


def _changed(given: Mapping[str, tuple[ApiModel, str]]) -> list[str]:
    """Return the paths whose field does not have its default."""
    return [
        path
        for path, (model, name) in given.items()
        if getattr(model, name) != type(model).model_fields[name].get_default(call_default_factory=True)
    ]


def refused_locally(deployment: InferenceDeployment) -> list[str]:
    """Return what a cluster could do for this deployment and `bireme up` can't, as instructions; often empty."""
    refusals = unsupported_template(deployment.spec.template)
    refusals += _about_nodes(deployment.spec)
    refusals += _about_rollouts(deployment.spec)
    if deployment.spec.engine.type is EngineType.CUSTOM:
        refusals.append("spec.engine.type: set it to Bireme; a local stage has no container to run")
    refusals += _about_the_router(deployment.spec)
    if deployment.spec.autoscaling is not None:
        refusals.append("spec.autoscaling: remove it; local groups share one machine, so more of them serve no more")
    shards = deployment.spec.engine.shard_cache
    if shards is not None and shards.claim_name is not None:
        refusals.append("spec.engine.shardCache.claimName: a local process has no claims; write nodePath")
    return _about_the_source(deployment.spec.model.source) + refusals
