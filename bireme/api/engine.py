"""What runs inside a group: the engine, its limits, and its key-value cache."""

from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import Field

from bireme.api.base import ApiModel, Rule, exactly_one
from bireme.api.types import ABSOLUTE_PATH, ADAPTER_PATH, PERCENT, ModelName, ObjectName, Quantity, byte_count


class EngineType(StrEnum):
    """Which engine runs in the stage pods."""

    BIREME = "Bireme"
    CUSTOM = "Custom"


class Switch(StrEnum):
    """On or off, with room for more."""

    ENABLED = "Enabled"
    DISABLED = "Disabled"


class KVDType(StrEnum):
    """Number format of the key-value cache."""

    AUTO = "auto"
    FP8 = "fp8"
    INT8 = "int8"


class KVCache(ApiModel):
    """Memory for keys and values. At most one of fraction and bytes."""

    at: ClassVar[str] = "spec.engine.kvCache"
    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "!(has(self.fraction) && has(self.bytes))",
            lambda self: self.fraction is None or self.bytes is None,
            "set fraction or bytes, not both",
        ),
    )

    fraction: Annotated[str, Field(max_length=3, pattern=PERCENT)] | None = None
    """Share of the memory that is free on a rank's device once the weights are loaded, as a whole percentage. Default:
    the device's own default, named in the worker's log. Example: `90%`."""
    bytes: Quantity | None = None
    """Bytes per rank, in place of fraction. Example: `8Gi`."""
    dtype: KVDType = KVDType.AUTO
    """Number format of the cache. Default auto: the model's dtype."""

    def byte_count(self) -> int | None:
        """Return ``bytes`` as an integer, or None when it is not set."""
        return None if self.bytes is None else byte_count(self.bytes)


class ShardCache(ApiModel):
    """Where ranks keep their part of the weights, laid out as they load it, for the next start."""

    at: ClassVar[str] = "spec.engine.shardCache"
    rules: ClassVar[tuple[Rule, ...]] = (exactly_one("nodePath", "claimName"),)

    node_path: Annotated[str, Field(max_length=1024, pattern=ABSOLUTE_PATH)] | None = None
    """Directory on each node, made where it is missing; all groups may share it. User 65532 must be able to write
    there. Set exactly one of nodePath and claimName. Example: `/var/cache/bireme`."""
    claim_name: ObjectName | None = None
    """PersistentVolumeClaim of the same namespace in place of a node's directory, where hostPath volumes are forbidden.
    It must be ReadWriteMany when more than one pod writes. Clusters only; set exactly one of the two."""
    size: Quantity | None = None
    """Most bytes; the entries used longest ago go first. Default: no bound. Example: `200Gi`."""

    def byte_count(self) -> int:
        """Return ``size`` as an integer, 0 when there is no bound."""
        return 0 if self.size is None else byte_count(self.size)


AdapterPath = Annotated[str, Field(max_length=512, pattern=ADAPTER_PATH)]
Argument = Annotated[str, Field(max_length=1024)]


class Engine(ApiModel):
    """What runs inside a group. A change rolls the groups."""

    at: ClassVar[str] = "spec.engine"
    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "self.type == 'Custom' || !has(self.args) || self.args.size() == 0",
            lambda self: self.type is EngineType.CUSTOM or not self.args,
            "set type to Custom to give args: Bireme's own engine takes the named fields",
            field="args",
        ),
        Rule(
            "!has(self.shardCache) || self.type == 'Bireme'",
            lambda self: self.shard_cache is None or self.type is EngineType.BIREME,
            "set type to Bireme to have a shardCache: another engine keeps its own cache",
            field="shardCache",
        ),
    )

    type: EngineType = EngineType.BIREME
    """Bireme (default) is the engine of this project. Custom runs the container `worker` of spec.template with rank,
    world size and leader address in its environment; its readiness probe says when it serves, a loss is Recreate."""
    max_model_length: Annotated[int, Field(ge=1, le=16_777_216)] | None = None
    """Longest prompt plus output, in tokens; longer requests are refused. Default: the checkpoint's own limit."""
    max_running_requests: Annotated[int, Field(ge=1, le=65_536)] = 64
    """Requests that compute at the same time in one group. Default 64; the others wait."""
    max_batched_tokens: Annotated[int, Field(ge=1, le=1_048_576)] = 2048
    """Token budget of one step, prefill and decode together. Default 2048. Larger fills prompts faster, smaller keeps
    the gaps between tokens short."""
    kv_cache: KVCache = Field(default_factory=KVCache)
    """Memory for keys and values; it bounds how much text all running requests have together."""
    prefix_caching: Switch = Switch.ENABLED
    """Enabled (default) re-uses the cache of equal prompt beginnings. Outputs do not change."""
    speculation: Annotated[int, Field(ge=0, le=32)] = 0
    """Most tokens that are drafted per request and step by looking back in its own text. Default 0: none. Outputs do
    not change; texts that repeat themselves or their prompt come faster."""
    adapters: Annotated[dict[ModelName, AdapterPath], Field(max_length=16)] = Field(default_factory=dict)
    """LoRA adapters in PEFT's format: the name by which clients choose one, and its directory in the pod. Default none.
    """
    shard_cache: ShardCache | None = None
    """Keeps each rank's part of the weights on the node's own disk, so that the next start reads only that. Default
    none."""
    args: Annotated[dict[str, Argument], Field(max_length=64)] = Field(default_factory=dict)
    """Further arguments for a Custom engine, name to value. Default none."""
