"""Which layers a pipeline stage holds.

The output head is read in every decode step like a layer and is often as large as several, so the last stage gets fewer
layers. The embedding costs a lookup and its memory, which counts as a quarter. The split makes the heaviest stage as
light as possible; `parallelism.stageLayers` overrides it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from bireme_worker.checkpoints.config import ModelConfig
from bireme_worker.models.errors import CannotSplit

EMBEDDING_WEIGHT: Final = 0.25


@dataclass(frozen=True, slots=True)
class StageLayers:
    """Layers ``first`` to ``last`` (exclusive) of one stage, and whether it embeds and samples."""

    first: int
    last: int
    embeds: bool
    samples: bool

    @property
    def count(self) -> int:
        """How many layers the stage holds."""
        return self.last - self.first


def stage_layers(config: ModelConfig, stage: int, stages: int, explicit: Sequence[int] = ()) -> StageLayers:
    """Return the part of ``stage``.

    Raises:
        CannotSplit: more stages than layers, or an explicit split that does not add up; with the numbers.
    """
    layers = config.num_hidden_layers
    if stages > layers:
        raise CannotSplit(
            f"parallelism.pipeline is {stages}, but the model has {layers} layers: set it to at most {layers}"
        )
    counts = list(explicit) or weighted_split(layers, stages, *edge_weights(config))
    if len(counts) != stages or sum(counts) != layers or min(counts) < 1:
        raise CannotSplit(
            f"parallelism.stageLayers {counts} has {len(counts)} stages with {sum(counts)} layers; the deployment has "
            f"{stages} stages and the model {layers} layers: give every stage at least one and all of them together"
        )
    bounds = [0, *accumulate(counts)]
    return StageLayers(bounds[stage], bounds[stage + 1], embeds=stage == 0, samples=stage == stages - 1)


def edge_weights(config: ModelConfig) -> tuple[float, float]:
    """Weight of embedding and head, in layers."""
    attention = config.hidden_size * config.head_dim * 2 * (config.num_attention_heads + config.num_key_value_heads)
    layer = attention + 3 * config.hidden_size * config.intermediate_size
    table = config.vocab_size * config.hidden_size / layer
    return table * EMBEDDING_WEIGHT, table


def weighted_split(layers: int, stages: int, first: float, last: float) -> list[int]:
    """Layers per stage such that the heaviest stage is lightest; ``first`` and ``last`` weigh on the outer stages."""
    weights = [1.0] * stages
    weights[0] += first
    weights[-1] += last
    counts = [1] * stages
    for _ in range(layers - stages):
        lightest = weights.index(min(weights))
        counts[lightest] += 1
        weights[lightest] += 1
    return counts
