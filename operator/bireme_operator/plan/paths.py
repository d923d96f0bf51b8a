"""Where the checkpoint lies, as a stage sees it."""

from typing import Final

from bireme.api.deployment import Spec

CLAIM_MOUNT: Final = "/bireme/model"
"""Where a PersistentVolumeClaim with the checkpoint is mounted in a stage pod."""
SHARDS_MOUNT: Final = "/bireme/shards"
"""Where the shard cache is mounted."""


def model_path(spec: Spec) -> str:
    """Return where the checkpoint lies as the stage sees it."""
    source = spec.model.source
    if source.path is not None:
        return source.path
    assert source.persistent_volume_claim is not None, "the API refuses the other sources"
    inside = source.persistent_volume_claim.path
    return CLAIM_MOUNT if inside == "." else f"{CLAIM_MOUNT}/{inside}"
