"""Which model is served: its public names, where the checkpoint lies, and how its numbers are held."""

from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import Field

from bireme.api.base import ApiModel, Rule, SecretKeyRef, exactly_one
from bireme.api.types import ABSOLUTE_PATH, RELATIVE_PATH, ListKeys, ModelName, ModelRevision, ObjectName


class DType(StrEnum):
    """Number format of weights and activations."""

    AUTO = "auto"
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"


class Quantization(StrEnum):
    """Format to which plain weights are quantized at load."""

    NONE = "none"
    INT8 = "int8"
    FP8 = "fp8"
    INT4 = "int4"


class ImagePullPolicy(StrEnum):
    """When an image is pulled."""

    IF_NOT_PRESENT = "IfNotPresent"
    ALWAYS = "Always"
    NEVER = "Never"


class PersistentVolumeClaimSource(ApiModel):
    """A checkpoint inside a PersistentVolumeClaim of the same namespace."""

    claim_name: ObjectName
    """Name of the claim. It must be ReadOnlyMany or ReadWriteMany when more than one pod reads it."""
    path: Annotated[str, Field(min_length=1, max_length=1024, pattern=RELATIVE_PATH)] = "."
    """Directory or file inside the volume. Default `.`, its root. Example: `llama-3.1-70b`."""


class ImageSource(ApiModel):
    """A checkpoint as an OCI image, mounted as an image volume (Kubernetes 1.35 or newer)."""

    reference: Annotated[str, Field(min_length=1, max_length=512)]
    """Image reference, best by digest. Example: `registry.example/models/llama@sha256:…`."""
    pull_policy: ImagePullPolicy = ImagePullPolicy.IF_NOT_PRESENT
    """When the image is pulled. Default IfNotPresent."""
    path: Annotated[str, Field(min_length=1, max_length=1024, pattern=RELATIVE_PATH)] = "."
    """Directory or file inside the image. Default `.`, its root. Example: `models/llama-3.1-70b`."""


class HubSource(ApiModel):
    """A checkpoint on a model hub, fetched before the group starts."""

    repository: Annotated[str, Field(min_length=1, max_length=200)]
    """Repository. Example: `HuggingFaceTB/SmolLM2-135M-Instruct`."""
    commit: Annotated[str, Field(min_length=1, max_length=100)] = "main"
    """Branch, tag or commit. Default `main`; a commit makes restarts repeatable."""
    token_secret_ref: SecretKeyRef | None = None
    """Secret key with the hub's token. Default: anonymous."""


class ObjectStoreSource(ApiModel):
    """A checkpoint in an object store, fetched before the group starts."""

    uri: Annotated[str, Field(max_length=1024, pattern=r"^(s3|gs|az)://")]
    """Bucket and prefix. Example: `s3://models/llama-3.1-70b`."""
    endpoint: Annotated[str, Field(min_length=1, max_length=512)] | None = None
    """Address of the store. Default: the provider's own."""
    credentials_secret_ref: SecretKeyRef | None = None
    """Secret key with the store's credentials. Default: the pod's own identity."""


class ModelSource(ApiModel):
    """Where the checkpoint lies: exactly one of the fields."""

    at: ClassVar[str] = "spec.model.source"
    rules: ClassVar[tuple[Rule, ...]] = (exactly_one("path", "persistentVolumeClaim", "image", "hub", "objectStore"),)

    path: Annotated[str, Field(max_length=1024, pattern=ABSOLUTE_PATH)] | None = None
    """Directory or GGUF file as the stage sees it: inside the container (mounted by spec.template), or on a laptop
    below a directory given by `bireme up --mount`. Example: `/models/smollm2-135m-instruct`."""
    persistent_volume_claim: PersistentVolumeClaimSource | None = None
    """A claim that is mounted read-only into every stage. Clusters only."""
    image: ImageSource | None = None
    """An OCI image that is mounted read-only into every stage. Clusters only."""
    hub: HubSource | None = None
    """A model hub's repository."""
    object_store: ObjectStoreSource | None = None
    """A bucket and prefix of an object store."""


class Model(ApiModel):
    """Which model is served."""

    at: ClassVar[str] = "spec.model"

    name: ModelName | None = None
    """The OpenAI `model` that clients name. Default metadata.name. Example: `llama-3.1-70b`."""
    aliases: Annotated[tuple[ModelName, ...], Field(max_length=16), ListKeys()] = ()
    """Further names that clients may use. Default none. A change touches the router only."""
    source: ModelSource
    """Where the checkpoint lies: exactly one of path, persistentVolumeClaim, image, hub, objectStore."""
    revision: ModelRevision
    """Your name for this checkpoint. A change of only this, or of the path inside volumes that are already mounted,
    reloads the weights in place; another claim or image rolls the pods. Example: `"2026-11-01"`."""
    dtype: DType = DType.AUTO
    """Number format of weights and activations. Default auto: the checkpoint's own on a GPU, float32 on a CPU without
    native bfloat16."""
    quantization: Quantization = Quantization.NONE
    """Format to which plain weights are quantized at load. Default none."""
