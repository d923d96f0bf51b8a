"""Where the checkpoint lies, as a stage sees it."""

from typing import Final

from bireme.api.deployment import Spec

MODEL_MOUNT: Final = "/bireme/model"
"""Where a PersistentVolumeClaim or an image with the checkpoint is mounted in a stage pod."""
SHARDS_MOUNT: Final = "/bireme/shards"
"""Where the shard cache is mounted."""


def model_path(spec: Spec) -> str:
    """Return where the checkpoint lies as the stage sees it."""
    source = spec.model.source
    if source.path is not None:
        return source.path
    volume = source.persistent_volume_claim or source.image
    assert volume is not None, "the API refuses the other sources"
    return MODEL_MOUNT if volume.path == "." else f"{MODEL_MOUNT}/{volume.path}"
