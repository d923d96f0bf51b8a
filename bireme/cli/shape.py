"""Whether a checkpoint can be split as a deployment asks, by the worker's own rules. Reads headers only, no torch."""

from pathlib import Path

from bireme.api import InferenceDeployment
from bireme.cli.errors import Refused
from bireme.names import Exit
from bireme_worker.checkpoints.config import ModelConfig
from bireme_worker.checkpoints.errors import CheckpointError
from bireme_worker.checkpoints.layout import load_model_config
from bireme_worker.checkpoints.safetensors_index import check_files
from bireme_worker.models.errors import ConfigurationError
from bireme_worker.models.shard import HeadShard, Shard
from bireme_worker.models.stages import stage_layers
from bireme_worker.shards.layout import check_layout


def check_shape(deployment: InferenceDeployment, path: Path) -> None:
    """Return when the checkpoint at ``path`` is whole as far as headers tell, and can be split.

    Raises:
        Refused: with the numbers, and the exit code that a worker would have had.
    """
    try:
        config = load_model_config(path)
        check_files(path)
        _split(deployment, config)
        parallelism = deployment.spec.parallelism
        check_layout(path, config, parallelism.tensor, parallelism.pipeline, parallelism.stage_layers or ())
    except ConfigurationError as error:
        raise Refused(str(error)) from error
    except CheckpointError as error:
        raise Refused(f"the checkpoint can't be served: {error}", Exit.BAD_CHECKPOINT) from error


def _split(deployment: InferenceDeployment, config: ModelConfig) -> None:
    parallelism = deployment.spec.parallelism
    shard = Shard(0, parallelism.tensor)
    HeadShard.of(shard, config.num_attention_heads, config.num_key_value_heads)
    shard.part(config.intermediate_size, "columns of the MLP")
    stage_layers(config, 0, parallelism.pipeline, parallelism.stage_layers or ())
    longest = deployment.spec.engine.max_model_length
    if longest is not None and longest > config.max_position_embeddings:
        raise Refused(
            f"spec.engine.maxModelLength is {longest}, but the model was made for {config.max_position_embeddings} "
            "tokens: lower it or leave it out"
        )
