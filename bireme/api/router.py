"""The router before the groups: where it listens, what it refuses, when it tries again."""

from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import Field

from bireme.api.base import ApiModel, SecretKeyRef
from bireme.api.template import PodTemplate
from bireme.api.types import ObjectName, PositiveSeconds
from bireme.names import Port


class CrossRevision(StrEnum):
    """Whether a stream may go on under other weights."""

    DENY = "Deny"
    ALLOW = "Allow"


class RouterLimits(ApiModel):
    """What a request may take before it is refused, with a clear error each time."""

    max_body_bytes: Annotated[int, Field(ge=1024, le=1_073_741_824)] = 8_388_608
    """Largest request body, in bytes; above it 413. Default 8388608 (8 MiB)."""
    max_queued_requests: Annotated[int, Field(ge=0, le=1_000_000)] = 1024
    """Requests that may wait in the router for a group; above it 429. Default 1024."""
    connect_timeout_seconds: PositiveSeconds = 2
    """How long a group may take to accept a connection. Default 2."""
    queue_timeout_seconds: PositiveSeconds = 60
    """How long a request may wait for a group; then 503. Default 60."""
    first_token_timeout_seconds: PositiveSeconds = 300
    """How long a group may take to the first token; long prompts need it. Default 300."""
    idle_timeout_seconds: PositiveSeconds = 60
    """Longest gap between two tokens before the stream is continued on another group. Default 60."""
    total_timeout_seconds: PositiveSeconds = 3600
    """Longest life of a request, retries included; the header x-request-timeout can shorten it. Default 3600."""


class RouterRetry(ApiModel):
    """When a request is sent again. Only what is provably unprocessed or resumable ever is."""

    at: ClassVar[str] = "spec.router.retry"

    attempts: Annotated[int, Field(ge=1, le=10)] = 3
    """How often a request may be sent, the first time included. Default 3. 1 turns retries off."""
    cross_revision: CrossRevision = CrossRevision.DENY
    """Deny (default): a stream goes on only under the model revision that began it. Allow: under any, once no group
    serves its own; the words after the break are then another model's."""


class RouterTLS(ApiModel):
    """TLS of the router's port."""

    secret_name: ObjectName
    """Secret of type kubernetes.io/tls; read again when it changes."""


class Router(ApiModel):
    """The router before the groups. A change touches no worker pod."""

    at: ClassVar[str] = "spec.router"

    replicas: Annotated[int, Field(ge=0, le=100)] = 1
    """Router pods. Default 1. 0 runs none, for a gateway of your own. They share what API keys used, so limits and
    fairness are those of all. Locally: processes on one port."""
    port: Annotated[int, Field(ge=1, le=65_535)] = int(Port.ROUTER)
    """Port of the OpenAI-compatible endpoint. Default 8080."""
    limits: RouterLimits = Field(default_factory=RouterLimits)
    """What a request may take."""
    retry: RouterRetry = Field(default_factory=RouterRetry)
    """When a request is sent again."""
    api_keys_secret_ref: SecretKeyRef | None = None
    """Secret key with the API keys that are let in (`docs/router-edge.md`). Default: none is asked for."""
    rate_limits_secret_ref: SecretKeyRef | None = None
    """Secret key with requests and tokens per minute by API key (`docs/router.md`). Default: none is limited."""
    hedge_after_milliseconds: Annotated[int, Field(ge=0, le=600_000)] = 0
    """How long the first token may take before a second group is asked too, for one request in twenty at most.
    Default 0: never."""
    tls: RouterTLS | None = None
    """TLS on the port; probes speak it too. Default none."""
    template: PodTemplate | None = None
    """Open pod template for the router's pods. Default none."""
