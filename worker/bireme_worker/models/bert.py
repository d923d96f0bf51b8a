"""The BERT family: BERT, RoBERTa, XLM-R, as they make vectors of texts (bge, e5, MiniLM).

Every token sees the whole text, so nothing is cached and a text is computed in one row, all of it at once. Its vector
is the mean of the last hidden states or the first of them, divided by its length.
"""

from dataclasses import dataclass, field

import torch
from torch.nn import functional

from bireme_worker.checkpoints.config import ModelConfig
from bireme_worker.models.batch import Batch
from bireme_worker.models.gpt import GPT, LayerNames, Names, three
from bireme_worker.models.kv_cache import LayerCache
from bireme_worker.models.shard import HeadShard, Shard
from bireme_worker.models.stages import StageLayers


class Encoder(GPT):
    """One stage on one rank."""

    def __init__(self, config: ModelConfig, stage: StageLayers, shard: Shard, dtype: torch.dtype) -> None:
        super().__init__(config, stage, shard, dtype, NAMES)
        self.backend = WholeBackend(self.heads)

    def place(self, device: torch.device) -> None:
        """Torch's own operators run on any device."""

    def pool(self, x: torch.Tensor, batch: Batch, ends: torch.Tensor) -> torch.Tensor:
        """``x [tokens, hidden]`` to one vector of length 1 for each row, by its last token in ``ends``; float32."""
        assert self.config.variant is not None
        begins = batch.cu_seqlens[:-1]
        rows = torch.searchsorted(batch.cu_seqlens, ends, right=True) - 1
        if self.config.variant.pooling == "cls":
            vectors = x.index_select(0, begins).float()
        else:
            counts = batch.cu_seqlens.diff()
            owner = torch.searchsorted(batch.cu_seqlens, torch.arange(len(x), device=x.device), right=True) - 1
            sums = torch.zeros((len(counts), x.shape[1]), device=x.device).index_add_(0, owner, x.float())
            vectors = sums / counts.unsqueeze(1)
        return functional.normalize(vectors.index_select(0, rows), dim=-1)


@dataclass(slots=True)
class WholeBackend:
    """Attention within a row, in both directions."""

    heads: HeadShard

    def prepare(self, batch: Batch, frequency: torch.Tensor) -> "WholeStep":  # noqa: ARG002  (nothing turns)
        """The rows' borders are all there is to know."""
        return WholeStep(self.heads, batch.single, batch.spans)


@dataclass(slots=True)
class WholeStep:
    """One step. Keys and values are those of the layer that stored last."""

    heads: HeadShard
    single: int
    spans: tuple[tuple[int, int, int], ...]
    _stored: tuple[torch.Tensor, torch.Tensor] = field(default=(torch.empty(0), torch.empty(0)))

    def store(self, qkv: torch.Tensor, cache: LayerCache) -> torch.Tensor:  # noqa: ARG002  (nothing is cached)
        """Keep keys and values for ``attend``; return the queries."""
        heads = self.heads.query_count
        self._stored = qkv[:, heads : 2 * heads], qkv[:, 2 * heads :]
        return qkv[:, :heads]

    def attend(self, queries: torch.Tensor, cache: LayerCache) -> torch.Tensor:  # noqa: ARG002
        """As the protocol says; a token that is alone sees its own value."""
        keys, values = self._stored
        parts = [values[: self.single]]
        for begin, end, _ in self.spans:
            query, key, value = (part[begin:end].transpose(0, 1).unsqueeze(0) for part in (queries, keys, values))
            parts.append(functional.scaled_dot_product_attention(query, key, value)[0].transpose(0, 1))
        return torch.cat(parts).flatten(1)


def _layer(number: int, config: ModelConfig, heads: HeadShard) -> LayerNames:
    name = f"encoder.layer.{number}"
    return LayerNames(
        attention_norm=f"{name}.attention.output.LayerNorm",
        qkv=three(f"{name}.attention.self", config, heads, ("query", "key", "value")),
        out=f"{name}.attention.output.dense",
        mlp_norm=f"{name}.output.LayerNorm",
        up=f"{name}.intermediate.dense",
        down=f"{name}.output.dense",
    )


NAMES = Names(
    _layer,
    "embeddings.word_embeddings",
    positions="embeddings.position_embeddings",
    types="embeddings.token_type_embeddings",
    embedding_norm="embeddings.LayerNorm",
)
