"""For which layout a checkpoint is cut, and for which a group would need it. No torch."""

from collections.abc import Sequence
from pathlib import Path

from bireme_worker.checkpoints.config import ModelConfig
from bireme_worker.checkpoints.manifest import Layout, read_layout
from bireme_worker.models.errors import WrongLayout
from bireme_worker.models.stages import stage_layers


def layout_of(config: ModelConfig, tensor: int, pipeline: int, layers: Sequence[int] = ()) -> Layout:
    """The layout with its layers counted out.

    Raises:
        CannotSplit: the layers can't be spread so.
    """
    return Layout(tensor, tuple(stage_layers(config, stage, pipeline, layers).count for stage in range(pipeline)))


def check_layout(source: Path, config: ModelConfig, tensor: int, pipeline: int, layers: Sequence[int]) -> None:
    """Return unless ``source`` is cut for another layout.

    Raises:
        WrongLayout: names both, and the command that changes it.
    """
    found, wanted = read_layout(source), layout_of(config, tensor, pipeline, layers)
    if found not in {None, wanted}:
        assert found is not None
        raise WrongLayout(
            f"{source} is cut for {found.describe()}, this group is {wanted.describe()}: "
            f"bireme convert {source} OTHER_DIRECTORY --tensor {tensor} --pipeline {pipeline}"
        )
