"""How one copy of the model is split: tensor parallel inside a stage's pod, pipeline parallel across pods."""

from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import Field

from bireme.api.base import ApiModel, Rule
from bireme.api.types import MAX_STAGES

Layers = Annotated[int, Field(ge=1, le=10_000)]


def _layers_match_stages(self: "Parallelism") -> bool:
    return self.stage_layers is None or len(self.stage_layers) == self.pipeline


class ExpertSplit(StrEnum):
    """How a mixture of experts is cut over the ranks of a stage."""

    INNER = "Inner"
    SPREAD = "Spread"


class Parallelism(ApiModel):
    """How one copy of the model is split over devices and pods. A change rolls the groups."""

    at: ClassVar[str] = "spec.parallelism"
    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "!has(self.stageLayers) || size(self.stageLayers) == self.pipeline",
            _layers_match_stages,
            "list as many stageLayers as pipeline has stages, or leave stageLayers out",
            field="stageLayers",
        ),
    )

    tensor: Annotated[int, Field(ge=1, le=128)] = 1
    """Ranks per stage: devices of one pod that share every layer. Default 1. It must divide the attention heads; key
    and value heads are replicated when it exceeds them. Example: 8 for a node of eight GPUs."""
    pipeline: Annotated[int, Field(ge=1, le=MAX_STAGES)] = 1
    """Stages per group, one pod each, each with a share of the layers. Default 1; at most the number of layers. A group
    uses tensor × pipeline devices."""
    stage_layers: Annotated[tuple[Layers, ...], Field(min_length=1, max_length=MAX_STAGES)] | None = None
    """Layers of each stage, first to last; the sum is the model's layers. Default: an even split that weighs embedding
    and output head. Example: `[16, 14]` for pipeline 2."""
    experts: ExpertSplit = ExpertSplit.INNER
    """How a mixture of experts is cut over the ranks of a stage. Default Inner: each rank holds a part of every expert,
    so that all work alike. Spread: each holds some experts whole (expert parallelism), for experts whose inner size
    tensor does not divide; tensor must then divide the experts. Other models do not look at it. Example: `Spread`."""
