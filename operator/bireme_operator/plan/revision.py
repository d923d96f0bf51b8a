"""The semantic hash of a pod rendering: two specs have the same revision when a running pod could not tell them apart.

Never the hash of a serialised object: only values that differ from the baseline below are hashed, so that a new
operator, a new field or a changed default rolls nothing. Checkpoint, aliases and policies are no part of it.
"""

import hashlib
import json
from typing import Any, Final

from bireme.api.deployment import Spec
from bireme.api.engine import EngineType
from bireme_operator.plan.paths import model_path

# What each value was when this table was first released. Never edit a line: add one for a new field, with the value
# that means "as before". tests/planner/test_revision.py holds golden hashes.
BASELINE: Final[dict[str, Any]] = {
    "dtype": "auto",
    "quantization": "none",
    "tensor": 1,
    "pipeline": 1,
    "stageLayers": None,
    "experts": "Inner",
    "engine": "Bireme",
    "maxModelLength": None,
    "maxRunningRequests": 64,
    "maxBatchedTokens": 2048,
    "kvCacheFraction": None,
    "kvCacheBytes": None,
    "kvCacheDtype": "auto",
    "prefixCaching": "Enabled",
    "speculation": 0,
    "adapters": {},
    "args": {},
    "shardCache": None,
    "templateMetadata": {},
    "templateSpec": {},
    "volumeSource": None,
    "customCheckpoint": None,
}


def pod_revision(spec: Spec, model_name: str) -> str:
    """Return ten hex digits that name the rendering of the stage pods."""
    values = {"modelName": model_name, **_rendered(spec)}
    telling = {key: value for key, value in values.items() if key not in BASELINE or value != BASELINE[key]}
    return hashlib.sha256(json.dumps(telling, sort_keys=True).encode()).hexdigest()[:10]


def _rendered(spec: Spec) -> dict[str, Any]:
    engine, parallelism = spec.engine, spec.parallelism
    layers = parallelism.stage_layers
    return {
        "dtype": spec.model.dtype.value,
        "quantization": spec.model.quantization.value,
        "tensor": parallelism.tensor,
        "pipeline": parallelism.pipeline,
        "experts": parallelism.experts.value,
        "stageLayers": None if layers is None else list(layers),
        "engine": engine.type.value,
        "maxModelLength": engine.max_model_length,
        "maxRunningRequests": engine.max_running_requests,
        "maxBatchedTokens": engine.max_batched_tokens,
        "kvCacheFraction": engine.kv_cache.fraction,
        "kvCacheBytes": engine.kv_cache.byte_count(),
        "kvCacheDtype": engine.kv_cache.dtype.value,
        "prefixCaching": engine.prefix_caching.value,
        "speculation": engine.speculation,
        "adapters": dict(engine.adapters),
        "args": dict(engine.args),
        "shardCache": None if engine.shard_cache is None else engine.shard_cache.model_dump(exclude_none=True),
        "templateMetadata": spec.template.metadata,
        "templateSpec": spec.template.spec,
        "volumeSource": _volume(spec),
        # Another engine can't be asked to reload, so its checkpoint is a matter of its pods.
        "customCheckpoint": [spec.model.revision, model_path(spec)] if engine.type is EngineType.CUSTOM else None,
    }


def _volume(spec: Spec) -> str | None:
    """Another claim or image changes the pods; another path inside the same volume changes the checkpoint only."""
    source = spec.model.source
    if source.persistent_volume_claim is not None:
        return f"claim/{source.persistent_volume_claim.claim_name}"
    return None if source.image is None else f"image/{source.image.reference}"
