"""What the pods of one revision are made of. A group keeps to its own until it is rolled, whatever the spec says then.

`spec` changes faster than groups do: what dies in the middle of a rollout is made again as it was, not half as it will
be. Old renderings are kept by the backend; the planner is given those that it may need.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Self

from bireme.api.deployment import Spec
from bireme.api.engine import EngineType, KVDType, Switch
from bireme.api.model import Quantization
from bireme.api.parallelism import ExpertSplit
from bireme.names import Env
from bireme_operator.plan.paths import SHARDS_MOUNT, model_path
from bireme_operator.plan.revision import pod_revision


@dataclass(frozen=True)
class Rendering:
    """Pods of ``revision``, with the checkpoint ``model_revision``. ``environment`` is what all stages share."""

    revision: str
    stages: int
    tensor: int
    model_revision: str
    environment: Mapping[str, str]
    custom: bool = False

    @classmethod
    def of(cls, spec: Spec, model_name: str) -> Self:
        """Translate the part of a spec that pods and checkpoint depend on."""
        revision = pod_revision(spec, model_name)
        return cls(
            revision,
            spec.parallelism.pipeline,
            spec.parallelism.tensor,
            spec.model.revision,
            _shared_environment(spec, model_name, revision),
            spec.engine.type is EngineType.CUSTOM,
        )

    @property
    def source(self) -> str:
        """Where the checkpoint lies, as a stage sees it."""
        return self.environment.get(Env.MODEL_PATH, "")

    @cached_property
    def key(self) -> str:
        """A short name of pods and checkpoint together."""
        checkpoint = f"{self.model_revision}\0{self.source}"
        return f"{self.revision}-{hashlib.sha256(checkpoint.encode()).hexdigest()[:6]}"


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
        **_extras(spec),
    }


def _extras(spec: Spec) -> dict[str, str]:
    """What most deployments do without is left out, so that a new field rolls nobody's pods."""
    adapters = ",".join(f"{name}={path}" for name, path in spec.engine.adapters.items())
    cache, quantization, shards = spec.engine.kv_cache, spec.model.quantization, spec.engine.shard_cache
    extras = {
        Env.SPECULATION: str(spec.engine.speculation or ""),
        Env.ADAPTERS: adapters,
        Env.QUANTIZATION: "" if quantization is Quantization.NONE else quantization.value,
        Env.KV_DTYPE: "" if cache.dtype is KVDType.AUTO else cache.dtype.value,
        Env.SPREAD_EXPERTS: "1" if spec.parallelism.experts is ExpertSplit.SPREAD else "",
        Env.KV_FRACTION: (cache.fraction or "").removesuffix("%"),
        Env.SHARD_CACHE: "" if shards is None else shards.node_path or SHARDS_MOUNT,
        Env.SHARD_CACHE_BYTES: "" if shards is None or shards.size is None else str(shards.byte_count()),
    }
    return {name: value for name, value in extras.items() if value}
