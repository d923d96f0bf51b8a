"""What GPT-2, OPT, BLOOM and the BERT family share: layer norms, biases, a plain MLP, positions added or none.

A family's own file says what the checkpoint calls the parts and in which layout it has them. The attention is that of
the Llama family with frequencies of zero: heads that turn by nothing.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

import torch
from torch.nn import functional

from bireme_worker.checkpoints.config import ModelConfig
from bireme_worker.models.batch import Batch
from bireme_worker.models.kv_cache import KVCache, LayerCache
from bireme_worker.models.layers.attention import AttentionBackend, ForwardPass, GatherBackend
from bireme_worker.models.layers.layer_norm import LayerNorm
from bireme_worker.models.layers.linear import ColumnLinear, Projection, RowLinear
from bireme_worker.models.layers.vocabulary import VocabularyEmbedding, VocabularyHead, vocabulary_weight
from bireme_worker.models.progress import Progress
from bireme_worker.models.shard import HeadShard, Shard, VocabularyShard
from bireme_worker.models.stages import StageLayers
from bireme_worker.models.weight import Piece, Weight
from bireme_worker.parallel.communicator import Communicator

Activation = Callable[[torch.Tensor], torch.Tensor]
ACTIVATIONS: Final[Mapping[str, Activation]] = {
    "relu": functional.relu,
    "gelu": functional.gelu,
    "gelu_new": partial(functional.gelu, approximate="tanh"),
    "gelu_pytorch_tanh": partial(functional.gelu, approximate="tanh"),
}


@dataclass(frozen=True, slots=True)
class LayerNames:
    """One layer's parts in the checkpoint. ``qkv``: this rank's query, key and value heads, in this order."""

    attention_norm: str
    qkv: tuple[Projection, ...]
    out: str
    mlp_norm: str
    up: str
    down: str


@dataclass(frozen=True, slots=True)
class Names:
    """The parts outside the layers; empty where a family has none. ``types``: token types, of which the first is used.

    ``transposed``: the layers' matrices are stored as inputs × outputs.
    """

    layer: Callable[[int, ModelConfig, HeadShard], LayerNames]
    embedding: str
    positions: str = ""
    types: str = ""
    embedding_norm: str = ""
    norm: str = ""
    transposed: bool = False


class GPTLayer:
    """One layer on one rank; the norms come before attention and MLP, or after the sums."""

    def __init__(
        self,
        config: ModelConfig,
        parts: LayerNames,
        shard: Shard,
        heads: HeadShard,
        *,
        turned: bool,
        dtype: torch.dtype,
    ) -> None:
        """``turned``: the matrices are stored as inputs × outputs."""
        assert config.variant is not None
        hidden, inner, eps = config.hidden_size, config.intermediate_size, config.rms_norm_eps
        width = config.num_attention_heads * config.head_dim
        channels = shard.part(inner, "intermediate_size channels")
        mine = slice(heads.query.start * config.head_dim, heads.query.stop * config.head_dim)
        self.attention_norm = LayerNorm(parts.attention_norm, hidden, eps, dtype)
        self.qkv = ColumnLinear(parts.qkv, hidden, dtype, bias=True)
        self.out = RowLinear(Projection(parts.out, width, mine, turned), hidden, dtype, bias=True)
        self.mlp_norm = LayerNorm(parts.mlp_norm, hidden, eps, dtype)
        self.up = ColumnLinear([Projection(parts.up, inner, channels, turned)], hidden, dtype, bias=True)
        self.down = RowLinear(Projection(parts.down, inner, channels, turned), hidden, dtype, bias=True)
        self._norm_first = config.variant.norm_first
        self._activation = ACTIVATIONS[config.variant.activation]
        self._head_dim = config.head_dim

    @property
    def weights(self) -> list[Weight]:
        """Parameters in load order."""
        linears = (self.qkv, self.out, self.up, self.down)
        norms = (self.attention_norm, self.mlp_norm)
        return [weight for part in (*norms, *linears) for weight in part.weights]

    def __call__(self, x: torch.Tensor, cache: LayerCache, forward: ForwardPass) -> torch.Tensor:
        if self._norm_first:
            x = x.add_(self._attend(self.attention_norm(x), cache, forward))
            return x.add_(self._mlp(self.mlp_norm(x), forward))
        x = self.attention_norm(x.add_(self._attend(x, cache, forward)))
        return self.mlp_norm(x.add_(self._mlp(x, forward)))

    def _attend(self, x: torch.Tensor, cache: LayerCache, forward: ForwardPass) -> torch.Tensor:
        queries = forward.step.store(self.qkv(x).view(len(x), -1, self._head_dim), cache)
        return self.out(forward.step.attend(queries, cache), forward.communicator)

    def _mlp(self, x: torch.Tensor, forward: ForwardPass) -> torch.Tensor:
        return self.down(self._activation(self.up(x)), forward.communicator)


class GPT:
    """One stage of such a model on one rank; on the meta device until loaded.

    Raises:
        CannotShard: heads or intermediate size do not divide by ``shard.size``.
    """

    def __init__(self, config: ModelConfig, stage: StageLayers, shard: Shard, dtype: torch.dtype, names: Names) -> None:
        self.config, self.stage, self.dtype = config, stage, dtype
        self.heads = HeadShard.of(shard, config.num_attention_heads, config.num_key_value_heads)
        self.vocabulary = VocabularyShard.of(shard, config.vocab_size)
        self._frequency = torch.zeros(config.head_dim // 2)
        self.backend: AttentionBackend = GatherBackend(self.heads, dtype, torch.device("cpu"))
        self._names = names
        self.layers = [
            GPTLayer(
                config,
                names.layer(number, config, self.heads),
                shard,
                self.heads,
                turned=names.transposed,
                dtype=dtype,
            )
            for number in range(stage.first, stage.last)
        ]
        self._embedding = VocabularyEmbedding(self._table(names.embedding), self.vocabulary) if stage.embeds else None
        self._positions = self._row_table(names.positions, self._offset + config.max_position_embeddings)
        self._types = self._row_table(names.types, config.variant.token_types if config.variant else 0)
        self._embedding_norm = self._norm(names.embedding_norm) if stage.embeds else None
        self._last_norm = self._norm(names.norm) if stage.samples else None
        self._head = self._make_head() if stage.samples and not config.is_encoder else None

    def place(self, device: torch.device) -> None:
        """Compute on ``device`` from now on; the weights are the loader's."""
        self._frequency = self._frequency.to(device)
        if device.type == "cuda":
            from bireme_worker.models.layers.paged import PagedBackend  # noqa: PLC0415  Triton, only beside a GPU

            self.backend = PagedBackend(self.heads, self.dtype, size=self.config.head_dim)

    def weights(self) -> Iterator[Weight]:
        """Every parameter once, in load order."""
        if self._embedding is not None:
            yield self._embedding.weight
        yield from (table for table in (self._positions, self._types) if table is not None)
        for part in (self._embedding_norm, *self.layers, self._last_norm):
            if part is not None:
                yield from part.weights
        if self._head is not None:
            yield self._head.weight

    def embed(self, ids: torch.Tensor, communicator: Communicator) -> torch.Tensor:
        """``[tokens] → [tokens, hidden]``, on the first stage; ``run_layers`` adds the positions."""
        assert self._embedding is not None
        return self._embedding(ids, communicator)

    def run_layers(
        self, x: torch.Tensor, batch: Batch, cache: KVCache, communicator: Communicator, progress: Progress
    ) -> torch.Tensor:
        """``[tokens, hidden] → [tokens, hidden]`` through this stage's layers; counts each in ``progress``."""
        forward = ForwardPass(self.backend.prepare(batch, self._frequency), communicator)
        x = self._placed(x, batch)
        for layer, layer_cache in zip(self.layers, cache.layers, strict=True):
            x = layer(x, layer_cache, forward)
            progress.layers += 1
        return x

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        """``[rows, hidden] → [rows, vocabulary shard]`` in float32, on the last stage."""
        assert self._head is not None
        return self._head(x if self._last_norm is None else self._last_norm(x))

    def _placed(self, x: torch.Tensor, batch: Batch) -> torch.Tensor:
        """What the first stage adds to the embedding before its layers."""
        if self._positions is not None:
            x = x + functional.embedding(batch.positions + self._offset, self._positions.tensor)
        if self._types is not None:
            x = x + self._types.tensor[0]
        return x if self._embedding_norm is None else self._embedding_norm(x)

    @property
    def _offset(self) -> int:
        return 0 if self.config.variant is None else self.config.variant.position_offset

    def _norm(self, name: str) -> LayerNorm | None:
        return LayerNorm(name, self.config.hidden_size, self.config.rms_norm_eps, self.dtype) if name else None

    def _row_table(self, name: str, rows: int) -> Weight | None:
        if not name or not self.stage.embeds:
            return None
        size = (rows, self.config.hidden_size)
        return Weight(size, self.dtype, (Piece(f"{name}.weight", size),))

    def _make_head(self) -> VocabularyHead:
        name = self._names.embedding if self.config.tie_word_embeddings else "lm_head"
        return VocabularyHead(self._table(name, multiplies=True), self.vocabulary)

    def _table(self, name: str, *, multiplies: bool = False) -> Weight:
        size = (self.config.vocab_size, self.config.hidden_size)
        return vocabulary_weight(f"{name}.weight", size, self.vocabulary, self.dtype, multiplies=multiplies)


def three(
    name: str, config: ModelConfig, heads: HeadShard, projections: tuple[str, str, str]
) -> tuple[Projection, ...]:
    """Query, key and value as matrices of their own."""
    mine = slice(heads.query.start * config.head_dim, heads.query.stop * config.head_dim)
    width = config.num_attention_heads * config.head_dim
    return tuple(Projection(f"{name}.{projection}", width, mine) for projection in projections)
